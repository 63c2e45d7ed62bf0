#!/usr/bin/env python3
"""Makes the tokenizer vectors of tests/golden/text with the PyPI package tokenizers (0.23.3):

    tokenizer.py tests/golden/text              encodings, decodings and rules, from strings.jsonl and tokenizers/ there
    tokenizer.py FOLDER --train                 first trains the tokenizers that are missing (ties are broken by hash order, so
                                                 a tokenizer that is there stays as it is)

FOLDER/strings.jsonl     a text a line
FOLDER/tokenizers/X.json tokenizer.json files
FOLDER/X.jsonl           for text i of strings.jsonl, special tokens added: [ids, offsets in a row, tokens that are not shown as the
                         vocabulary has them as [index, text]]
FOLDER/X.decode.jsonl    [ids, text, text with special tokens skipped]
FOLDER/rules.jsonl       a normalizer and a pre-tokenizer a line, behind them a Unigram model that knows nothing: its tokens are the
                         pieces, so that what every rule does to texts and offsets can be seen: [normalizer, pre-tokenizer, cases], a
                         case is [text index, tokens, offsets in a row]; every second of the shorter texts. The last line is a
                         Precompiled normalizer with the character map of a SentencePiece model
FOLDER/sentencepiece.json  a BPE model trained by the PyPI package sentencepiece (0.2.3), as a GGUF file would hold it: pieces, scores, types,
                         and its own ids for the texts as [text index, ids]
"""
import base64, io, json, pathlib, sys

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def split(regex, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: regex}, "behavior": behavior, "invert": invert}


def sequence(key, *rules): return {"type": "Sequence", key: list(rules)}


def byte_level(prefix=False, regex=True): return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def metaspace(scheme, split_too): return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split_too}


def bert(clean=True, chinese=True, accents=None, lower=True):
    return {"type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese, "strip_accents": accents, "lowercase": lower}


def replace(pattern, content, kind="String"): return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


DIGITS = {"type": "Digits", "individual_digits": True}
RULES = [(n, None) for n in (
    {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "StripAccents"}, {"type": "Nmt"},
    {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"), replace("", "x"), replace(r"\s+", " ", "Regex"), replace(r"(?i)the|[0-9]", "é", "Regex"),
    replace(r" {2,}", "▁", "Regex"), {"type": "ByteLevel"}, bert(), bert(lower=False), bert(accents=False), bert(clean=False, chinese=False, accents=True, lower=False),
    sequence("normalizers", {"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"}),
    sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
    sequence("normalizers", {"type": "NFKC"}, {"type": "Strip", "strip_left": True, "strip_right": True}, replace(r" +", "▁", "Regex")))]
RULES += [(None, p) for p in (
    byte_level(), byte_level(prefix=True), byte_level(regex=False), {"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"},
    DIGITS, {"type": "Digits", "individual_digits": False}, {"type": "CharDelimiterSplit", "delimiter": " "}, {"type": "FixedLength", "length": 3},
    metaspace("always", True), metaspace("first", True), metaspace("never", True), metaspace("first", False), metaspace("always", False),
    split(GPT2), split(LLAMA3), split(LLAMA3.replace("{1,3}", "")), split(O200K), split(r"\p{N}"), split(r"\p{N}{1,3}"), split(r"\d+", "Contiguous"),
    split(r"\w+|[^\w\s]+", "Removed", True), split(r"[\r\n]", "MergedWithPrevious"), split(r"\s", "MergedWithNext"), split(" ", "MergedWithPrevious", kind="String"),
    split("e", "Contiguous", kind="String"), split(r"[^\S\r\n]+", "Isolated"), split(r"[\p{L}&&[^\p{Han}]]+|\p{Han}", "Isolated"), split(r"(?=[A-Z])", "Isolated"), split(r"^.", "Isolated"), split(r"(?m)a.*$", "Removed"), split(r"\h+|[[:punct:]]", "Isolated"),
    sequence("pretokenizers", split(r"\p{N}{1,3}"), split(r"[一-龥぀-ゟ゠-ヿ]+"), split(r"[!-/:-~]?\p{L}+|\s+"), byte_level(regex=False)),
    sequence("pretokenizers", {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"}, {"type": "Digits", "individual_digits": False}),
    sequence("pretokenizers", DIGITS, byte_level()))]
RULES += [(None, {"type": "Punctuation", "behavior": b}) for b in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")]
RULES += [(bert(), {"type": "BertPreTokenizer"}), ({"type": "NFC"}, split(LLAMA3)), ({"type": "Lowercase"}, metaspace("first", True)),
          (replace(" ", "▁"), split("▁", "MergedWithNext", kind="String")), ({"type": "NFKD"}, byte_level(prefix=True))]


def lines(path, rows):
    def dump(r): return json.dumps(r, ensure_ascii=False, separators=(",", ":")).replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").replace("\x85", "\\u0085")
    path.write_text("".join(dump(r) + "\n" for r in rows), encoding="utf-8")


def encode(t, text):
    e = t.encode(text)
    return [e.ids, [x for o in e.offsets for x in o], [[i, w] for i, (n, w) in enumerate(zip(e.ids, e.tokens)) if t.id_to_token(n) != w]]


def decode(t, ids): return [ids, t.decode(ids, skip_special_tokens=False), t.decode(ids, skip_special_tokens=True)]


def rule(normalizer, pre, strings):
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]], "byte_fallback": False}
    t = Tokenizer.from_str(json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer,
                                       "pre_tokenizer": pre, "post_processor": None, "decoder": None, "model": model}))
    cases = []
    for i in [i for i, text in enumerate(strings) if len(text) <= 70][::2]:
        e = t.encode(strings[i])
        cases.append([i, e.tokens, [x for o in e.offsets for x in o]])
    return [normalizer, pre, cases]


def train(folder, strings):
    """What the trained byte-level and SentencePiece-like ones do not cover: other models, post-processors and decoders."""
    text = [s for s in strings if len(s) > 8 and max(map(ord, s)) < 0x100] + ["the quick brown fox jumps over the lazy dog and the dog sleeps"] * 3
    T = {}
    t = Tokenizer(models.Unigram()); t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always"); t.decoder = decoders.Metaspace(prepend_scheme="always")
    t.train_from_iterator(text, trainers.UnigramTrainer(vocab_size=400, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    T["unigram"] = t
    t = Tokenizer(models.Unigram()); t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    t.train_from_iterator(text, trainers.UnigramTrainer(vocab_size=300, special_tokens=["<unk>"] + ["<0x%02X>" % i for i in range(256)], unk_token="<unk>", show_progress=False))
    j = json.loads(t.to_str()); j["model"]["byte_fallback"] = True; j["added_tokens"] = j["added_tokens"][:1]
    t = Tokenizer.from_str(json.dumps(j)); t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    T["unigram-bytes"] = t
    t = Tokenizer(models.WordPiece(unk_token="[UNK]")); t.normalizer = normalizers.BertNormalizer(); t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(text, trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)); t.decoder = decoders.WordPiece()
    T["wordpiece"] = t
    t = Tokenizer(models.WordLevel(unk_token="[UNK]")); t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.train_from_iterator(text, trainers.WordLevelTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False))
    T["wordlevel"] = t
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")); t.normalizer = normalizers.Lowercase(); t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=450, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False)); t.decoder = decoders.BPEDecoder()
    T["bpe-suffix"] = t
    t = Tokenizer(models.BPE()); t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=500, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0)); t.decoder = decoders.ByteLevel()
    T["roberta"] = t
    for name, tok in T.items():
        path = folder / "tokenizers" / (name + ".json")
        if not path.exists(): path.write_text(tok.to_str(pretty=False) + "\n", encoding="utf-8")


def sentencepiece_model(strings, **options):
    import sentencepiece
    text = [s for s in strings if len(s) > 8 and max(map(ord, s)) < 0x250 and "\n" not in s and "\0" not in s] * 4
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text), model_writer=model, model_type="bpe", num_threads=1, minloglevel=2,
                                             hard_vocab_limit=False, **options)
    return model.getvalue()


def sentencepiece_file(folder, strings):
    """Llama's settings: nothing normalized, no white space removed, a mark in front, bytes for what is unknown."""
    import sentencepiece
    path = folder / "sentencepiece.json"
    if path.exists(): return
    data = sentencepiece_model(strings, vocab_size=600, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                               character_coverage=0.98, user_defined_symbols=["<tool>"])
    sp = sentencepiece.SentencePieceProcessor(model_proto=data)
    n = sp.vocab_size()
    kinds = [6 if sp.is_byte(i) else 3 if sp.is_control(i) else 2 if sp.is_unknown(i) else 4 if sp.id_to_piece(i) == "<tool>" else 1 for i in range(n)]
    # NUL, and texts with what users may not write (a control token is text to sentencepiece, but no token of ours to compare)
    usable = [(i, s) for i, s in enumerate(strings) if s and "\0" not in s and "<s>" not in s and "</s>" not in s and "<unk>" not in s]
    path.write_text(json.dumps({"pieces": [sp.id_to_piece(i) for i in range(n)], "scores": [sp.get_score(i) for i in range(n)], "types": kinds,
                                "cases": [[i, sp.encode(s)] for i, s in usable]}, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def charsmap(folder):
    """A small character map, compiled by sentencepiece: ligatures, wide letters, something that vanishes, two that become one."""
    import sentencepiece.sentencepiece_model_pb2 as pb
    rules = folder / "charsmap.tsv"
    rows = [("FB01", "66 69"), ("FF21", "41"), ("FF42", "62"), ("00A0", "20"), ("3000", "20"), ("2026", "2E 2E 2E"), ("0065 0301", "E9"), ("AD", ""),
            ("1F600", "3A 29"), ("0041 030A", "C5"), ("1100 1161", "AC00")]
    rules.write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    m = pb.ModelProto()
    m.ParseFromString(sentencepiece_model(["the quick brown fox jumps", "over the lazy dog and sleeps"], vocab_size=60, normalization_rule_tsv=str(rules)))
    rules.unlink()
    return base64.b64encode(m.normalizer_spec.precompiled_charsmap).decode()


def main(folder, trains):
    strings = [json.loads(l) for l in (folder / "strings.jsonl").read_text(encoding="utf-8").split("\n") if l]
    if trains: train(folder, strings)
    for path in sorted((folder / "tokenizers").glob("*.json")):
        t = Tokenizer.from_file(str(path))
        rows = [encode(t, s) for s in strings]
        lines(folder / (path.stem + ".jsonl"), rows)
        size = max(t.get_vocab().values()) + 1
        lines(folder / (path.stem + ".decode.jsonl"), [decode(t, r[0]) for r in rows[::9]] + [decode(t, [(i * 37 + k * 101) % size for i in range(12)]) for k in range(12)])
    texts = strings
    lines(folder / "rules.jsonl", [rule(n, p, texts) for n, p in RULES + [({"type": "Precompiled", "precompiled_charsmap": charsmap(folder)}, None)]])
    sentencepiece_file(folder, strings)


if len(sys.argv) < 2: sys.exit(__doc__)
main(pathlib.Path(sys.argv[1]), "--train" in sys.argv)
