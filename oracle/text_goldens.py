"""Golden token ids of the families' real tokenizers, and the part of each that makes them.

    python text_goldens.py ids DIR         writes ../crates/text/tests/golden/ids.json
    python text_goldens.py json RANKS CONFIG OUT

`ids`: DIR has a folder for each tokenizer with `tokenizer.json`, or with `tiktoken.model` and
`tokenizer_config.json`. Ids come from the Python packages `tokenizers` and `tiktoken`. The golden
file holds of each tokenizer its rules and those tokens and merges that were candidates while the
strings were merged: with them the strings get the same ids as with all, and a wrong order shows.

`json`: writes `tokenizer.json` from RANKS (base64 tokens and ranks, as tiktoken has them) and
CONFIG, a tokenizer.json without vocabulary and merges; a merge is the pair that makes a token out
of those of lower rank or, where none does, every pair of tokens it consists of.

Needs tokenizers==0.23.3 and tiktoken==0.14.0.
"""

import base64
import json
import sys
import zlib
from pathlib import Path

import tiktoken
import tokenizers

from text_strings import LONG_RUNS, strings

GOLDEN = Path(__file__).parent.parent / "crates" / "text" / "tests" / "golden" / "ids.json"

# The class `TikTokenTokenizer`, which tokenizer_config.json names beside tiktoken.model.
HAN = r"[\p{Han}]+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
TAIL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPLIT = "|".join([
    HAN,
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{TAIL}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{TAIL}",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])
RESERVED = 256


def alphabet():
    """GPT-2's characters for bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(0x100 + i) for i, b in enumerate(rest)}}


ALPHABET = alphabet()


def spelled(token):
    return "".join(ALPHABET[byte] for byte in token)


def read_ranks(path):
    lines = Path(path).read_text().split("\n")
    pairs = (line.split(" ") for line in lines if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def halves(token, rank, ranks):
    """The two parts whose merging makes a token; None for a token nothing makes."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [(ranks.get(a + b, rank), at) for at, (a, b) in enumerate(zip(parts, parts[1:]))]
        best, at = min(pairs)
        if best >= rank:
            return None
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
    return tuple(parts) if len(parts) == 2 else None


def splits(token, ranks):
    """Every pair of tokens that a token consists of, for those that are only made by detours."""
    pairs = [(token[:at], token[at:]) for at in range(1, len(token))]
    known = [pair for pair in pairs if pair[0] in ranks and pair[1] in ranks]
    return sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def write_json(ranks_path, config_path, out_path):
    ranks = read_ranks(ranks_path)
    config = json.loads(Path(config_path).read_text())
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda pair: pair[1]):
        if len(token) == 1:
            continue
        pair = halves(token, rank, ranks)
        pairs = [pair] if pair else splits(token, ranks)
        merges += [[spelled(part) for part in pair] for pair in pairs]
    config["model"]["vocab"] = {spelled(token): rank for token, rank in ranks.items()}
    config["model"]["merges"] = merges
    Path(out_path).write_text(json.dumps(config, ensure_ascii=False))


class OfJson:
    """A tokenizer.json."""

    def __init__(self, folder):
        self.json = json.loads((folder / "tokenizer.json").read_text())
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        model = self.json["model"]
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        self.order = {tuple(pair): at for at, pair in enumerate(pairs)}
        self.vocab = model["vocab"]
        self.tokens, self.merges = set(), set()

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def note(self, text):
        """Remembers what the pieces of a text may need."""
        if self.tokenizer.normalizer:
            text = self.tokenizer.normalizer.normalize_str(text)
        added = [token["content"] for token in self.json["added_tokens"]]
        for part in split_out(text, added):
            for piece, _ in self.tokenizer.pre_tokenizer.pre_tokenize_str(part):
                if self.json["model"].get("ignore_merges") and piece in self.vocab:
                    self.tokens.add(piece)
                    continue
                parts = list(piece)
                while True:
                    pairs = [(self.order[pair], at) for at, pair in enumerate(zip(parts, parts[1:]))
                             if pair in self.order]
                    self.merges.update(order for order, _ in pairs)
                    if not pairs:
                        break
                    _, at = min(pairs)
                    parts[at:at + 2] = [parts[at] + parts[at + 1]]
                self.tokens.update(parts)

    def small(self):
        """Rules, tokens by original id, merges as pairs of places in that list."""
        by_order = {order: pair for pair, order in self.order.items()}
        merges = [by_order[order] for order in sorted(self.merges)]
        names = set(self.tokens) | set(ALPHABET.values()) & set(self.vocab)
        names |= {part for pair in merges for part in (*pair, "".join(pair))}
        tokens = sorted(names, key=self.vocab.get)
        place = {name: at for at, name in enumerate(tokens)}
        config = {**self.json, "added_tokens": self.added(), "padding": None, "truncation": None}
        config["model"] = {k: v for k, v in config["model"].items() if k not in ("vocab", "merges")}
        return {
            "config": config,
            "tokens": [[name, self.vocab[name]] for name in tokens],
            "merges": [[place[a], place[b]] for a, b in merges],
        }

    def added(self):
        """Added tokens the strings have, and every one that is short."""
        texts = strings()
        return [token for token in self.json["added_tokens"]
                if any(token["content"] in text for text in texts)]


class OfRanks:
    """A tiktoken.model with its configuration."""

    def __init__(self, folder):
        self.ranks = read_ranks(folder / "tiktoken.model")
        self.config = json.loads((folder / "tokenizer_config.json").read_text())
        named = self.config["added_tokens_decoder"]
        first = len(self.ranks)
        self.special = {
            named.get(str(at), {"content": f"<|reserved_token_{at}|>"})["content"]: at
            for at in range(first, first + RESERVED)
        }
        self.encoding = tiktoken.Encoding(
            "golden", pat_str=SPLIT, mergeable_ranks=self.ranks, special_tokens=self.special
        )
        self.tokens = set()

    def ids(self, text):
        return self.encoding.encode(text, allowed_special="all")

    def note(self, text):
        for part in split_out(text, self.special):
            for token in self.encoding.encode_ordinary(part):
                self.tokens.add(self.encoding.decode_single_token_bytes(token))
            for piece in self.pieces(part):
                if piece in self.ranks:
                    self.tokens.add(piece)
                    continue
                parts = [bytes([byte]) for byte in piece]
                while True:
                    joined = (a + b for a, b in zip(parts, parts[1:]))
                    pairs = [(self.ranks[token], at) for at, token in enumerate(joined)
                             if token in self.ranks]
                    self.tokens.update(parts[at] + parts[at + 1] for _, at in pairs)
                    if not pairs:
                        break
                    _, at = min(pairs)
                    parts[at:at + 2] = [parts[at] + parts[at + 1]]
                self.tokens.update(parts)

    def pieces(self, text):
        """Pieces of a text: what an encoding of the single bytes and of nothing else splits at."""
        import regex

        # `regex` spells the intersection of classes with V1; the two agree on these strings.
        return [piece.encode() for piece in regex.findall(SPLIT, text, flags=regex.V1)]

    def small(self):
        tokens = {bytes([byte]) for byte in range(256)} | self.tokens
        listed = sorted(tokens, key=self.ranks.get)
        return {
            "reserved": self.config,
            "tokens": [[base64.b64encode(token).decode(), self.ranks[token]] for token in listed],
        }


def split_out(text, added):
    """Parts of a text between added tokens."""
    parts = [text]
    for token in sorted(added, key=len, reverse=True):
        parts = [piece for part in parts for piece in part.split(token)]
    return [part for part in parts if part]


def digest(ids):
    return [len(ids), zlib.crc32(b"".join(one.to_bytes(4, "little") for one in ids))]


def write_ids(folder):
    texts = strings()
    golden = {"strings": texts, "long_runs": LONG_RUNS, "tokenizers": {}}
    for path in sorted(path for path in Path(folder).iterdir() if path.is_dir()):
        one = OfRanks(path) if (path / "tiktoken.model").exists() else OfJson(path)
        for text in texts:
            one.note(text)
        golden["tokenizers"][path.name] = {
            "ids": [one.ids(text) for text in texts],
            # Length and CRC-32 of the ids as little-endian u32; with all tokens only.
            "long": [digest(long_ids(one, text * count)) for text, count in LONG_RUNS],
            "small": one.small(),
        }
        small = golden["tokenizers"][path.name]["small"]
        print(path.name, len(small["tokens"]), len(small.get("merges", [])))
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    GOLDEN.write_text(text + "\n")
    print(len(text.encode()), "bytes")


def long_ids(one, text):
    """The class cuts long texts and long runs before it encodes them."""
    if isinstance(one, OfJson):
        return one.ids(text)
    ids = []
    for start in range(0, len(text), 400_000):
        for cut in cuts(text[start:start + 400_000]):
            ids += one.ids(cut)
    return ids


def cuts(text, longest=25_000):
    start, run, space = 0, 0, text[:1].isspace()
    for at, c in enumerate(text):
        if c.isspace() != space:
            run, space = 1, not space
        else:
            run += 1
            if run > longest:
                yield text[start:at]
                start, run = at, 1
    yield text[start:]


if __name__ == "__main__":
    if sys.argv[1] == "ids":
        write_ids(sys.argv[2])
    else:
        write_json(*sys.argv[2:])
