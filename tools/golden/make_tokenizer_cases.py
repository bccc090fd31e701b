#!/usr/bin/env python3
"""Writes tests/data/tokenizer/: small tokenizers and what the tokenizers library makes of texts.

  pip install tokenizers==0.23.3
  tools/golden/make_tokenizer_cases.py          # rewrites the folder; the result is committed

byte_level.json and sentencepiece.json are two tokenizer.json files trained here. cases.json holds
variants of them: some top-level keys replaced, some texts, the ids and the decoded texts.
"""
import copy
import json
import pathlib
import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "tokenizer"

TRAINING_TEXT = """Once upon a time there was a little girl named Lily. She loved to play outside.
The quick brown fox doesn't jump over the lazy dog; it's asleep, they're tired, we've seen, I'll go.
for (int i = 0; i < 100; ++i) { std::printf("%d\\n", values[i]); }   // counts 2023, 1234567
    def forward(self, x):\n        return self.layer(x) + 3.14159
Der Bär läuft über die Straße. L'élève a mangé à l'hôtel. El niño pequeño.
Привет, мир! Как дела? Это хороший день. 今日は世界。你好，世界。我们都是好朋友。안녕하세요 세계
hello world hello World HELLO WORLD HelloWorld user assistant system <tool> </tool>
""" * 8

TEXTS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\t\n", " \n", "\n ", "a", " a", "a ",
    "Hello world", " Hello world", "Hello  world", "Hello   World!", "hello, World! It's me.",
    "I'll go, we've seen, they're HERE'S 'Twas don't DON'T", "it\u2019s", "\u017fun '\u017f 'S 'K",
    "123", "1234567", "12 345,678.90", "x1y22z333w4444", "٣٤٥", "½ ² Ⅷ ③", "3.14e-10",
    "for (int i = 0; i < 10; ++i) {\n    x[i] += 1;\n}\n", "\n\n\nend\n\n", "  \n  \n  x", "a\r\n\r\nb",
    "tabs\t\tand  spaces   here    ok     done", "trailing spaces   ", "   leading",
    "camelCaseWord HTTPServer XMLHttpRequest iPhone", "ALLCAPS lower MixedCASE", "!!!???...", "...a!b?c",
    "<tool>call</tool>", "a_b__c-d--e", "@user #tag $5 50% ^caret ~tilde `tick`",
    "Der Bär läuft über die Straße", "L'élève a mangé", "e\u0301 a\u0308 o\u0302\u0301 \u0301x",
    "q\u0323\u0307 q\u0307\u0323 \u1e69 s\u0323\u0307", "\ufb01ne ﬀ ™ ① Å \u212b \u2126",
    "Привет, мир! Как дела?", "ЁЛКА ёлка", "今日は世界。", "你好，世界。123年", "我们 都是 好朋友", "カタカナ ひらがな 漢字",
    "안녕하세요 세계", "한국어123", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "ภาษาไทย", "ქართული",
    "🦙 llama 🚀🚀 👨‍👩‍👧 🇩🇪", "emoji😀text", "\u00a0nbsp\u00a0\u00a0x", "\u3000ideographic\u3000space", "\u180emongolian\u180e",
    "zero\u200bwidth\u200djoin", "\ufeffbom", "line\u2028sep\u2029para", "nel\u0085x", "\x00\x01\x1f\x7f", "\u0b95\u0bca",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𝟘𝟙", "ǅ ǈ ʰ ª", "a" * 30, " " * 30, "." * 30, "7" * 10, "Aa" * 15, "世" * 10, "\n" * 20,
    "\u2581under\u2581score \u2581", "<0x41> <0xE4>", "ĠĊ Ġa",
]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
DEEPSEEK_V3 = [
    r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
DEEPSEEK_LLM = ["[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺͰ-ͳΆΈ-ΊΌΎ-ΡΣ-ϵҊ-ԯЀ-ҁ]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
                r"\s+$", "[一-龥ࠀ-一가-퟿]+"]
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"]
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2 = {**BYTES, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(steps)}}


def added(first_id, *tokens):
    """Each token: (content, special, flags...)."""
    return [{"id": first_id + i, "content": content, "special": special, "normalized": "normalized" in flags,
             "lstrip": "lstrip" in flags, "rstrip": "rstrip" in flags, "single_word": "single_word" in flags}
            for i, (content, special, *flags) in enumerate(tokens)]


def template(before, after):
    names = before + after
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": n, "type_id": 0}} for n, _ in before]
                      + [{"Sequence": {"id": "A", "type_id": 0}}]
                      + [{"SpecialToken": {"id": n, "type_id": 0}} for n, _ in after],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {n: {"id": n, "ids": [i], "tokens": [n]} for n, i in names}}


def train_byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=480, special_tokens=["<|end|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([TRAINING_TEXT], trainer)
    return json.loads(tokenizer.to_str())


def train_sentencepiece():
    """The shape of Llama 2, Mixtral and Phi-3: no pre-tokenizer, U+2581 for a space, byte fallback."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=300, limit_alphabet=90, show_progress=False)
    trained.train_from_iterator([TRAINING_TEXT], trainer)
    learned = json.loads(trained.to_str())["model"]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for token in learned["vocab"]:
        vocab.setdefault(token, len(vocab))
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": added(0, ("<unk>", True), ("<s>", True), ("</s>", True)),
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": None,
        "post_processor": template([("<s>", 1)], []),
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {**learned, "vocab": vocab, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True},
    }


def byte_level_variants(first_id):
    space = [(" " * n, False, "normalized") for n in (8, 7, 6, 5, 4, 3, 2)]
    yield "gpt2", {"pre_tokenizer": GPT2}
    yield "gpt2_prefix_space", {"pre_tokenizer": {**GPT2, "add_prefix_space": True}}
    yield "no_pattern", {"pre_tokenizer": BYTES}
    yield "llama3", {**sequence(split(LLAMA3), BYTES),
                     "added_tokens": added(0, ("<|end|>", True)) + added(first_id, ("<|begin|>", True)),
                     "post_processor": {"type": "Sequence", "processors": [
                         {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
                         template([("<|begin|>", first_id)], [("<|end|>", 0)])]}}
    yield "qwen2", {"normalizer": {"type": "NFC"}, **sequence(split(QWEN2), BYTES)}
    yield "deepseek_v3", {"normalizer": {"type": "Sequence", "normalizers": []},
                          **sequence(*map(split, DEEPSEEK_V3), BYTES)}
    yield "deepseek_llm", sequence(*map(split, DEEPSEEK_LLM), DIGITS, BYTES)
    yield "deepseek_coder", sequence(*map(split, DEEPSEEK_CODER), DIGITS, BYTES)
    yield "o200k", sequence(split(O200K), BYTES)
    yield "falcon", sequence({"type": "Punctuation", "behavior": "Contiguous"}, GPT2,
                             {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]"))
    yield "neox", {"normalizer": {"type": "NFC"}, "pre_tokenizer": GPT2,
                   "added_tokens": added(0, ("<|end|>", True)) + added(first_id, *space)}
    for form in ("NFD", "NFKC", "NFKD"):
        yield form.lower(), {"normalizer": {"type": form}, "pre_tokenizer": GPT2}
    yield "replace_regex", {"normalizer": {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}}
    for behavior in ("Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        yield f"split_{behavior}", sequence(split(r"[\s!.]", behavior), BYTES)
    yield "split_inverted", sequence(split(r"\w+", "Removed", True), BYTES)
    yield "split_string", sequence(split(" ", "MergedWithNext", kind="String"), BYTES)
    yield "split_lookahead", sequence(split(r"(?=[A-Z])"), BYTES)
    yield "metaspace", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}, BYTES]}}


def sentencepiece_variants(first_id):
    base = added(0, ("<unk>", True), ("<s>", True), ("</s>", True))
    plain = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}]
    yield "mixtral", {}
    yield "mixtral_added", {"added_tokens": base + added(
        first_id, ("<|a|>", True), ("<b>", False, "rstrip"), ("<c>", False, "lstrip"),
        ("<d>", False, "single_word"), ("<e>", False, "lstrip", "rstrip", "single_word"),
        ("<n>", False, "normalized"), ("<bb>", False), ("<bbb>", True, "rstrip"))}
    for scheme in ("first", "always", "never"):
        metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": scheme != "first"}
        yield f"metaspace_{scheme}", {
            "normalizer": None, "pre_tokenizer": metaspace,
            "added_tokens": base + added(first_id, ("<|a|>", True), ("<b>", False, "rstrip")),
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, metaspace]}}
    yield "unknown_fused", {"model": {"byte_fallback": False}}
    yield "unknown_each", {"model": {"byte_fallback": False, "fuse_unk": False},
                           "decoder": {"type": "Sequence", "decoders": plain + [{"type": "Fuse"}]}}


def added_token_texts():
    """200 short texts around added tokens."""
    rng = random.Random(7)
    parts = ["<|a|>", "<b>", "<c>", "<d>", "<e>", "<n>", "<bb>", "<bbb>", "x", "user", " ", "  ", "\n", "<", ">", "é",
             "\u3000", "<b", "1"]
    fixed = ["x<|a|>user", "<|a|> user", "x <b> y", "<|a|><|a|>", "x<d>y", "x <d> y", "<d>", "x  <c>  y", "x  <e>  y"]
    return fixed + ["".join(rng.choice(parts) for _ in range(rng.randint(2, 7))) for _ in range(200 - len(fixed))]


def apply(base, change):
    file = copy.deepcopy(base)
    for key, value in change.items():
        if key == "model":
            file["model"].update(value)
        else:
            file[key] = value
    return file


def run(file, texts):
    """Per text: plain (no special tokens, none recognized) and, where they differ from the obvious,
    ids (special tokens added and recognized; default plain), decoded (default the text) and
    decoded_all (of ids, special tokens shown; default decoded)."""
    tokenizer = Tokenizer.from_str(json.dumps(file))
    results = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        decoded = tokenizer.decode(plain)
        decoded_all = tokenizer.decode(ids, skip_special_tokens=False)
        result = {"plain": plain}
        if ids != plain:
            result["ids"] = ids
        if decoded != text:
            result["decoded"] = decoded
        if decoded_all != decoded:
            result["decoded_all"] = decoded_all
        results.append(result)
    return results


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    extra = added_token_texts()
    variants = []
    for name, base, changes in (("byte_level", train_byte_level(), byte_level_variants),
                                ("sentencepiece", train_sentencepiece(), sentencepiece_variants)):
        (OUT / f"{name}.json").write_text(json.dumps(base, ensure_ascii=False, separators=(",", ":")) + "\n")
        for variant, change in changes(len(base["model"]["vocab"])):
            with_extra = variant in ("mixtral_added", "metaspace_first")
            texts = TEXTS + (extra if with_extra else [])
            variants.append({"name": variant, "base": name, "change": change, "extra_texts": with_extra,
                             "results": run(apply(base, change), texts)})
    lines = ",\n".join(json.dumps(v, ensure_ascii=False, separators=(",", ":")) for v in variants)
    head = json.dumps({"texts": TEXTS, "extra_texts": extra}, ensure_ascii=False, separators=(",", ":"))
    (OUT / "cases.json").write_text(head[:-1] + ',"variants":[\n' + lines + "\n]}\n")


if __name__ == "__main__":
    main()
