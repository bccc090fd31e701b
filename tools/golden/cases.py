"""The table of golden checkpoints: one entry a case, small enough to read at a glance."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """Shapes, file format and spelling of one tiny checkpoint; what it shows is in `shows`."""

    name: str
    shows: str
    family: str = "llama"  # "llama" or "mixtral"
    seed: int = 1
    vocab: int = 112
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 16
    ffn: int = 96
    experts: int = 0
    top_k: int = 0
    router_spread: float = 2.0  # standard deviation of the router logits, sets how uneven gates are
    tied: bool = False
    attention_bias: bool = False
    dtype: str = "float32"  # of the stored weights
    rope_theta: float = 10000.0
    llama3_scaling: dict | None = None
    rope_spelling: str = "rope_scaling"  # or "rope_parameters", the newer key
    rms_norm_eps: float = 1e-5
    shards: int = 1
    subnormal_up: bool = False  # f16 only: up projections below the smallest normal number
    extra_config: dict = field(default_factory=dict)
    generation_config: dict = field(default_factory=lambda: {"bos_token_id": 1, "eos_token_id": 2})

    @property
    def eos_ids(self) -> list[int]:
        eos = self.generation_config["eos_token_id"]
        return eos if isinstance(eos, list) else [eos]


# With an original context of 32, head_dim 16 and theta 20000 the wave lengths 6.3, 22, 75, 258...
# fall into all three regimes (kept, blended, divided by 8) and differ within 104 positions.
LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_type": "llama3",
}

CASES = [
    Case(
        "llama_mha",
        "multi-head attention, head_dim = hidden / heads, no head_dim key, untied output",
        seed=101, ffn=64,
    ),
    Case(
        "llama_gqa_tied",
        "3 query heads per KV head, head_dim 24 while hidden / heads is 10, tied embeddings",
        seed=102, hidden=60, heads=6, kv_heads=2, head_dim=24, ffn=64, tied=True, rms_norm_eps=1e-6,
    ),
    Case(
        "llama_rope_llama3",
        "llama3 frequency scaling under `rope_scaling`, theta 20000 beside it",
        seed=103, vocab=96, hidden=48, kv_heads=2, ffn=64, rope_theta=20000.0,
        llama3_scaling=LLAMA3_SCALING,
    ),
    Case(
        "llama_rope_parameters",
        "the weights of llama_rope_llama3, its rope under the newer key `rope_parameters`",
        seed=103, vocab=96, hidden=48, kv_heads=2, ffn=64, rope_theta=20000.0,
        llama3_scaling=LLAMA3_SCALING, rope_spelling="rope_parameters",
    ),
    Case(
        "llama_attention_bias",
        "bias on the q, k, v and o projections",
        seed=104, kv_heads=2, ffn=64, attention_bias=True,
    ),
    Case(
        "llama_bf16",
        "bf16 weights, 4 query heads per KV head, two end-of-sequence ids",
        seed=105, hidden=96, heads=8, kv_heads=2, ffn=96, dtype="bfloat16",
        generation_config={"bos_token_id": 1, "eos_token_id": [2, 5]},
    ),
    Case(
        "llama_f16",
        "f16 weights, up projections are subnormal numbers; sampling defaults in generation_config",
        seed=106, hidden=96, heads=6, kv_heads=3, ffn=96, dtype="float16", subnormal_up=True,
        generation_config={"bos_token_id": 1, "eos_token_id": 2, "do_sample": True,
                           "temperature": 0.6, "top_p": 0.9},
    ),
    Case(
        "mixtral_top2",
        "4 experts top-2, grouped-query attention, untied, head_dim and sliding_window null",
        family="mixtral", seed=107, vocab=96, hidden=48, heads=6, kv_heads=2, head_dim=8, ffn=48,
        experts=4, top_k=2, rope_theta=1e6, router_spread=1.6,
        extra_config={"head_dim": None, "sliding_window": None},
    ),
    Case(
        "mixtral_sharded_bf16",
        "8 experts top-2, tied embeddings, bf16, three shards that cut through layers and experts",
        family="mixtral", seed=108, heads=4, kv_heads=2, ffn=40, experts=8, top_k=2, tied=True,
        dtype="bfloat16", shards=3, rope_theta=1e6,
    ),
    Case(
        "mixtral_many_experts",
        "60 experts top-6",
        family="mixtral", seed=109, vocab=96, hidden=24, heads=2, kv_heads=1, ffn=8, experts=60,
        top_k=6, router_spread=3.0,
    ),
    Case(
        "mixtral_odd_sizes",
        "no width is a multiple of 16: hidden 72, head_dim 40, ffn 20, vocabulary 101, 5 experts",
        family="mixtral", seed=110, vocab=101, hidden=72, layers=2, heads=3, kv_heads=1,
        head_dim=40, ffn=20, experts=5, top_k=2, rope_theta=1e6, router_spread=1.8,
        rms_norm_eps=1e-6,
    ),
    Case(
        "llama_multi_query",
        "one KV head, head_dim 128 with hidden 32",
        seed=111, vocab=96, hidden=32, heads=2, kv_heads=1, head_dim=128, ffn=64,
        rope_theta=1e6, tied=True,
    ),
]
