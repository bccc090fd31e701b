"""Routing cases whose experts and gates were worked out by hand: from public reports, and ties."""

# Biased scores of the report; the unbiased ones are sigmoid(0) = 0.5.
_GROUP_SCORES = [0.30, 0.05, 0.20, 0.19, 0.02, 0.01, 0.26, 0.02]
_GROUP_BIAS = [round(s - 0.5, 4) for s in _GROUP_SCORES]

_SIGMOID_TINY = 8.7565e-27  # sigmoid(-60)

HAND_CASES = [
    # Weights of OLMoE and Qwen2-MoE come from the softmax over all experts, undivided.
    dict(name="not_renormalized_olmoe", source="sgl-project/sglang pull 35160",
         logits=[2.0, 1.0, 0.0, -1.0], top_k=2,
         expected_ids=[0, 1], expected_gates=[0.6439, 0.2369]),
    dict(name="renormalized_mixtral", source="sgl-project/sglang pull 35160",
         logits=[2.0, 1.0, 0.0, -1.0], top_k=2, renormalize=True,
         expected_ids=[0, 1], expected_gates=[0.7311, 0.2689]),
    dict(name="softmax_after_equals_renormalized", logits=[2.0, 1.0, 0.0, -1.0], top_k=2,
         softmax_after_topk=True, expected_ids=[0, 1], expected_gates=[0.7311, 0.2689]),
    # Groups 1 (.39) and 0 (.35) are kept by the sum of two; 0 (.30) and 3 (.26) by the maximum.
    dict(name="groups_by_sum_of_two_deepseek_v3", source="vllm-project/vllm pull 13474",
         logits=[0.0] * 8, bias=_GROUP_BIAS, top_k=2, scoring="sigmoid", num_groups=4,
         groups_kept=2, group_score="top2sum", expected_ids=[0, 2], expected_gates=[0.5, 0.5]),
    dict(name="groups_by_max_deepseek_v2", source="vllm-project/vllm pull 13474",
         logits=[0.0] * 8, bias=_GROUP_BIAS, top_k=2, scoring="sigmoid", num_groups=4,
         groups_kept=2, group_score="max", expected_ids=[0, 6], expected_gates=[0.5, 0.5]),
    # The bias chooses experts 2 and 0; gates .5 and .8808 are unbiased, divided by 1.3808, x 2.5.
    dict(name="bias_only_selects", source="vllm-project/vllm pull 12002",
         logits=[2.0, 1.0, 0.0, -1.0], bias=[0.0, 0.0, 0.5, 0.6], top_k=2, scoring="sigmoid",
         renormalize=True, renormalize_epsilon=1e-20, scale=2.5,
         expected_ids=[2, 0], expected_gates=[0.9053, 1.5947]),
    dict(name="bias_only_selects_unscaled", source="vllm-project/vllm pull 12002",
         logits=[2.0, 1.0, 0.0, -1.0], bias=[0.0, 0.0, 0.5, 0.6], top_k=2, scoring="sigmoid",
         renormalize=True, renormalize_epsilon=1e-20,
         expected_ids=[2, 0], expected_gates=[0.3621, 0.6379]),
    # Group 0 is kept with a negative second score; a masked group must not enter as 0.
    dict(name="masked_group_below_negative_score", logits=[0.0, 0.0, 0.0, 0.0],
         bias=[0.5, -1.0, -0.25, -0.375], top_k=2, scoring="sigmoid", num_groups=2, groups_kept=1,
         group_score="max", expected_ids=[0, 1], expected_gates=[0.5, 0.5]),
    # Ties go to the lower expert id.
    dict(name="all_equal_softmax", logits=[0.5] * 8, top_k=3, expected_ids=[0, 1, 2],
         expected_gates=[0.125] * 3),
    dict(name="all_equal_softmax_after", logits=[0.5] * 8, top_k=4, softmax_after_topk=True,
         expected_ids=[0, 1, 2, 3], expected_gates=[0.25] * 4),
    dict(name="all_equal_sigmoid", logits=[0.0] * 64, top_k=8, scoring="sigmoid", renormalize=True,
         renormalize_epsilon=1e-20, expected_ids=[0, 1, 2, 3, 4, 5, 6, 7],
         expected_gates=[0.125] * 8),
    dict(name="tie_at_the_boundary", logits=[0.0, 1.0, 3.0, 1.0, 1.0, -2.0], top_k=2,
         renormalize=True, expected_ids=[2, 1], expected_gates=[0.8808, 0.1192]),
    dict(name="tie_for_the_first_place", logits=[-1.0, 0.0, 2.0, 1.0, 0.0, 2.0], top_k=3,
         softmax_after_topk=True, expected_ids=[2, 5, 3],
         expected_gates=[0.4223, 0.4223, 0.1554]),
    dict(name="negative_zero_ties_with_zero", logits=[-1.0, -0.0, 0.0, -0.0], top_k=2,
         softmax_after_topk=True, expected_ids=[1, 2], expected_gates=[0.5, 0.5]),
    dict(name="equal_bias_keeps_the_tie", logits=[1.0, 0.0, 0.0, 1.0], bias=[0.0, 0.5, 0.5, 0.0],
         top_k=3, scoring="sigmoid", expected_ids=[1, 2, 0], expected_gates=[0.5, 0.5, 0.7311]),
    # Groups tie: the lower group is kept. By sum, group 1 = (0, 2) ties with group 2 = (2, 0).
    dict(name="group_tie_by_max", logits=[0.0, 1.0, 2.0, 0.0, 0.0, 2.0, 1.0, 1.0], top_k=2,
         renormalize=True, num_groups=4, groups_kept=1, group_score="max",
         expected_ids=[2, 3], expected_gates=[0.8808, 0.1192]),
    dict(name="group_tie_by_sum", logits=[0.0, 1.0, 0.0, 2.0, 2.0, 0.0, -1.0, 1.0], top_k=2,
         renormalize=True, num_groups=4, groups_kept=1, group_score="top2sum",
         expected_ids=[3, 2], expected_gates=[0.8808, 0.1192]),
    # A tie between experts of different kept groups, the lower group having come second.
    dict(name="tie_across_groups", logits=[0.0, 1.0, 2.0, 1.0, -1.0, 0.0], top_k=2,
         softmax_after_topk=True, num_groups=3, groups_kept=2, group_score="max",
         expected_ids=[2, 1], expected_gates=[0.7311, 0.2689]),
    # Extremes.
    dict(name="one_expert_renormalized", logits=[0.25, 1.0, -1.0, 0.5], top_k=1, renormalize=True,
         scale=2.5, expected_ids=[1], expected_gates=[2.5]),
    dict(name="all_experts", logits=[-1.0, 2.0, 0.0, 1.0], top_k=4,
         expected_ids=[1, 3, 2, 0], expected_gates=[0.6439, 0.2369, 0.08714, 0.03206]),
    dict(name="large_logits_do_not_overflow", logits=[298.0, 300.0, -300.0, 299.0], top_k=2,
         renormalize=True, expected_ids=[1, 3], expected_gates=[0.7311, 0.2689]),
    dict(name="very_negative_logits", logits=[-302.0, -300.0, -301.0, -400.0], top_k=2,
         softmax_after_topk=True, expected_ids=[1, 2], expected_gates=[0.7311, 0.2689]),
    dict(name="tiny_sigmoids_renormalized", logits=[-60.0, -60.0, -64.0, -64.0], top_k=2,
         scoring="sigmoid", renormalize=True, expected_ids=[0, 1], expected_gates=[0.5, 0.5]),
    # The epsilon 1e-20 dwarfs the sum: gates are sigmoid(-60) / 1e-20.
    dict(name="tiny_sigmoids_with_epsilon", logits=[-60.0, -60.0, -64.0, -64.0], top_k=2,
         scoring="sigmoid", renormalize=True, renormalize_epsilon=1e-20, scale=2.5,
         expected_ids=[0, 1], expected_gates=[2.5 * _SIGMOID_TINY / 1e-20] * 2),
]
