"""Batched continuation of prompts with the trainer's own model."""
import torch


def pad_left(prompts):
    """[B, longest] ids and the first valid index of each row."""
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    for row, prompt in zip(ids, prompts):
        row[longest - len(prompt):] = torch.tensor(prompt)
    return ids, torch.tensor([longest - len(p) for p in prompts])


def nucleus(probabilities, top_p):
    """Zeroes everything below the smallest set whose mass reaches top_p."""
    ordered, index = probabilities.sort(1, descending=True)
    ordered[ordered.cumsum(1) - ordered >= top_p] = 0
    return torch.zeros_like(probabilities).scatter(1, index, ordered)


def choose(logits, temperature, top_p, generator):
    """temperature [B], 0 = greedy."""
    greedy = logits.argmax(1)
    if not (temperature > 0).any():
        return greedy
    p = torch.softmax(logits / temperature.clamp(min=1e-3)[:, None], 1)
    if top_p < 1:
        p = nucleus(p, top_p)
    sampled = torch.multinomial(p, 1, generator=generator)[:, 0]
    return torch.where(temperature > 0, sampled, greedy)


@torch.no_grad()
def continue_prompts(model, prompts, new_tokens, temperature=0.0, top_p=1.0, seed=0):
    """prompts: lists of ids. temperature: a number or one per prompt. Returns a list of id lists,
    each cut after its first end-of-text token (id 0)."""
    ids, first = pad_left(prompts)
    batch, longest = ids.shape
    temperature = torch.as_tensor(temperature, dtype=torch.float32).expand(batch)
    generator = torch.Generator().manual_seed(seed)
    cache = model.new_cache(batch, longest + new_tokens)
    for t in range(longest):
        logits = model.step(ids[:, t], cache, t, first)
    out, ended = torch.zeros(batch, new_tokens, dtype=torch.int64), torch.zeros(batch).bool()
    for j in range(new_tokens):
        out[:, j] = choose(logits, temperature, top_p, generator)
        ended |= out[:, j] == 0
        if ended.all() or j + 1 == new_tokens:
            break
        logits = model.step(out[:, j], cache, longest + j, first)
    return [cut(row) for row in out.tolist()]


def cut(ids):
    return ids[:ids.index(0) + 1] if 0 in ids else ids


def sequence_logits(model, sequences, rows=4096):
    """Teacher-forced logits [len, V] of each id list, several lists per pass."""
    i = 0
    while i < len(sequences):
        part = [sequences[i]]
        while i + len(part) < len(sequences) and sum(map(len, part)) < rows:
            part.append(sequences[i + len(part)])
        lengths = list(map(len, part))
        yield from model.logits(torch.tensor(sum(part, [])), lengths).split(lengths)
        i += len(part)
