"""How well a draft model predicts its target: agreement and tokens per target pass.

The draft is compared along the target's own tokens; under greedy decoding that is exactly what
speculative decoding would see.
"""
import torch

from generate import sequence_logits

POOL_GRAM, REPEAT_GRAM = 12, 8


def greedy_agreement(draft, prompts, continuations):
    """For each continuation a list of bools: the draft's argmax is the target's token."""
    sequences = [p + c[:-1] for p, c in zip(prompts, continuations)]
    agreed = []
    for prompt, tokens, logits in zip(prompts, continuations, sequence_logits(draft, sequences)):
        predicted = logits[len(prompt) - 1:].argmax(1)
        agreed.append((predicted == torch.tensor(tokens)).tolist())
    return agreed


def sampled_acceptance(target, draft, prompts, continuations, temperature):
    """Mean over positions of sum_v min(p, q): the chance that a drafted sample is accepted
    (Leviathan et al. 2023), both distributions at `temperature`."""
    sequences = [p + c[:-1] for p, c in zip(prompts, continuations)]
    total = count = 0
    for prompt, a, b in zip(prompts, sequence_logits(target, sequences),
                            sequence_logits(draft, sequences)):
        p, q = (torch.softmax(x[len(prompt) - 1:] / temperature, 1) for x in (a, b))
        total += float(torch.minimum(p, q).sum())
        count += p.shape[0]
    return total / count


def share(flags):
    return sum(map(sum, flags)) / max(1, sum(map(len, flags)))


def grams(ids, n):
    return (tuple(ids[i:i + n]) for i in range(len(ids) - n + 1))


def clean_flags(agreed, prompts, continuations, pool_grams):
    """The flags of tokens that neither end a 12-gram of the distillation pool nor repeat an
    8-gram of their own story: agreement on text the draft cannot have by heart."""
    kept = []
    for flags, prompt, tokens in zip(agreed, prompts, continuations):
        ids, row = prompt + tokens, []
        own = {}
        for i, gram in enumerate(grams(ids, REPEAT_GRAM)):
            own.setdefault(gram, i + REPEAT_GRAM - 1)  # where it first ended
        for j, flag in enumerate(flags):
            end = len(prompt) + j
            in_pool = tuple(ids[max(0, end - POOL_GRAM + 1):end + 1]) in pool_grams
            repeated = own.get(tuple(ids[max(0, end - REPEAT_GRAM + 1):end + 1]), end) < end
            if not in_pool and not repeated:
                row.append(flag)
        kept.append(row)
    return kept


def tokens_per_pass(agreed, k):
    """Each target pass yields the accepted run of at most k drafts and one token of its own."""
    tokens = passes = 0
    for flags in agreed:
        t = 0
        while t < len(flags):
            run = 0
            while run < k and t + run < len(flags) and flags[t + run]:
                run += 1
            tokens += min(run + 1, len(flags) - t)
            t += run + 1
            passes += 1
    return tokens / passes
