#!/usr/bin/env python3
"""Makes checkpoints of random shapes and checks the engine on them.

    random_configs.py --family glm --count 20 --seed 5 --out checkpoints/random [--check]

Shapes come from random_shapes.py, checkpoints and references from the makers. A checkpoint whose
reference decides something within --margin is drawn anew, weights and prompt, with the same shape:
which of two equal experts or tokens comes first is no one's to say. So is one whose reference, run in
float32, is further than --noise from itself in float64, where the maker compares them: random
weights can make a deep model that magnifies any rounding. Ten draws of a shape that all fail give
it up for another. Only the reference is asked; how the engine fares plays no part. Everything drawn
is in MANIFEST.json.

--check runs the engine's own tests on the folder, of the model and of its draft heads (cargo is
needed), and prints a line a checkpoint; --recheck does so with the checkpoints of an earlier run.
--discard removes each that passed.
"""
import argparse
import contextlib
import io
import json
import linecache
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from random_shapes import FAMILIES, Draw  # noqa: E402

MOST_DRAWS = 60
DRAWS_OF_A_SHAPE = 10
GREEDY_TOKENS = 24


class Decisions:
    """Smallest relative gap at the border of every top-k that runs inside: routers and indexers.

    Gaps are relative to the largest value that competes, and where the values are probabilities, to
    the smaller of the two, because that is how rounding shows in each.
    """

    def __enter__(self):
        self.gap, self.site = float("inf"), None
        self.function, self.method = torch.topk, torch.Tensor.topk

        def topk(t, k, dim=-1, **kw):
            self.look(t, k, dim)
            return self.method(t, k, dim=dim, **kw)

        torch.topk = lambda input, k, dim=-1, **kw: topk(input, k, dim, **kw)
        torch.Tensor.topk = topk
        return self

    def __exit__(self, *_):
        torch.topk, torch.Tensor.topk = self.function, self.method

    def look(self, t, k, dim):
        frame = sys._getframe(2)
        while frame.f_code.co_name in ("topk", "<lambda>"):
            frame = frame.f_back
        site = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if k >= t.shape[dim] or not t.is_floating_point() or ".topk(2, dim=-1)[0]" in line:
            return  # no border, or only the values count
        t = t.detach().double().movedim(dim, -1)
        t = torch.where(t < -1e30, torch.full_like(t, -float("inf")), t)
        top = self.method(t, k + 1, dim=-1).values
        last, next_ = top[..., k - 1], top[..., k]
        finite = torch.where(torch.isfinite(t), t, torch.zeros_like(t))
        probabilities = (finite >= 0).all() and ((finite.sum(-1) - 1).abs() < 1e-4).all()
        scale = last if probabilities else finite.abs().amax(-1)
        gaps = ((last - next_) / scale.clamp_min(1e-30))[torch.isfinite(next_)]
        if gaps.numel() and float(gaps.min()) < self.gap:
            self.gap, self.site = float(gaps.min()), site


def make(family, v, seed, folder, length):
    """One checkpoint through the family's maker, quietly."""
    if family in ("olmoe", "glm", "deepseek_v4"):
        maker = __import__("make_" + family)
        maker.make(dict(v, prompt=length, ngen=GREEDY_TOKENS), seed, str(folder), quick=True)
    elif family in ("inkling", "kimi_k3"):
        maker = __import__("make_" + family)
        v = dict(v, seed=seed, prompt=length, gen=GREEDY_TOKENS)
        extra = {} if family == "inkling" else dict(candidates=1)
        maker.make(v, f"random {seed}", str(folder), **extra)
    else:
        maker = __import__("make_qwen38" if family == "qwen38" else "make_qwen36")
        common = maker.COMMON
        v = dict(v, seed=seed, n_prompt=length, n_new=GREEDY_TOKENS, text=dict(common, **v["text"]))
        maker.build(folder.name, v, folder, quick=True)


def greedy_gap(folder):
    """Smallest gap between the two largest logits where a token is chosen, of the largest logit."""
    ref = json.loads((folder / "ref.json").read_text())
    logits = load_file(str(folder / "ref.safetensors"))["logits"].double()
    chosen = ref.get("greedy_ids", ref.get("generated_ids"))
    start = len(ref["prompt_ids"]) - 1
    rows = logits[start:start + len(chosen)].topk(2, -1).values
    return float((rows[:, 0] - rows[:, 1]).min() / logits.abs().max()), ref


def own_noise(ref):
    """How far the reference in float32 is from itself in float64, 0 where that is not known."""
    return ref.get("f32_transcription_max_rel", ref.get("f32_vs_f64_rel_err", 0.0))


def one(family, seed, out, margin, noise):
    """Draws until the reference decides everything clearly; what the manifest says of it."""
    folder = out / f"{family}-{seed}"
    redrawn = []
    for attempt in range(MOST_DRAWS):
        # Some shapes magnify rounding whatever the weights: after a while, another one.
        if attempt % DRAWS_OF_A_SHAPE == 0:
            shape = f"{family} {seed} {attempt // DRAWS_OF_A_SHAPE}".removesuffix(" 0")
            v, length, summary = FAMILIES[family](Draw(shape))
        weights = 1000 * seed + attempt
        log = io.StringIO()
        with contextlib.redirect_stdout(log), Decisions() as decisions:
            make(family, v, weights, folder, length)
        greedy, ref = greedy_gap(folder)
        gap, site = decisions.gap, decisions.site
        if family == "kimi_k3":  # asks for one more than it takes, and knows the border itself
            gap, site = ref["min_routing_gap"], "router"
        if min(gap, greedy) >= margin and own_noise(ref) <= noise:
            keys = v.get("cfg") or v["text"]
            shape = {k: keys[k] for k in summary}
            for k in ("store", "nvfp4", "mxfp4", "fp8", "wrap", "prefix", "experts", "unwritten"):
                if v.get(k):
                    shape[k] = v[k]
            return dict(name=folder.name, family=family, seed=seed, weights=weights, shape=shape,
                        drawn=v, prompt=length, greedy_gap=greedy, decision_gap=gap,
                        reference_noise=own_noise(ref), redrawn=redrawn)
        redrawn.append(dict(weights=weights, greedy_gap=greedy, decision_gap=gap, site=site,
                            reference_noise=own_noise(ref)))
    raise SystemExit(f"{folder.name}: no clear reference in {MOST_DRAWS} draws: {redrawn[-1]}")


def shown(shape):
    words = {"linear_attention": "L", "full_attention": "A"}

    def value(v):
        if isinstance(v, list) and v and all(x in words for x in v):
            return "".join(words[x] for x in v)
        return str(v).replace(" ", "")

    return " ".join(f"{k}={value(v)}" for k, v in shape.items())


LINE = re.compile(r"CHECKED (\S+) ([\w-]+) (?:error (\S+)(?: greedy (\S+))?|FAILED (.*))$")


def has_heads(folder):
    """Whether the reference has logits of draft heads."""
    with safe_open(str(folder / "ref.safetensors"), "pt") as reference:
        return any(name.startswith("mtp_logits") for name in reference.keys())


def check(out, entries, discard):
    """Runs the engine's tests over the folder; a line a checkpoint. How many failed."""
    heads = {entry["name"]: has_heads(out / entry["name"]) for entry in entries}
    tests = ["oracle", "draft"] if any(heads.values()) else ["oracle"]
    command = ["cargo", "test", "-q", "-p", "lamella-engine", "--no-fail-fast",
               *(word for test in tests for word in ("--test", test)), "--",
               "--ignored", "--nocapture", "checkpoints_of_a_directory"]
    env = dict(os.environ, LAMELLA_CHECKPOINTS=str(out.resolve()))
    root = Path(__file__).resolve().parent.parent
    run = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    results = {}
    for line in (run.stdout + run.stderr).splitlines():
        if m := LINE.match(line.strip()):
            results.setdefault(Path(m[1]).name, {})[m[2]] = (m[3], m[4], m[5])
    if not results:
        raise SystemExit(run.stdout + run.stderr)
    failed = 0
    for entry in entries:
        got = results.get(entry["name"], {})
        words, good = [], len(got) == (4 if heads[entry["name"]] else 2)
        for backend, (error, greedy, failure) in sorted(got.items()):
            good &= failure is None and float(error) < 1e-4
            good &= greedy == ("equal" if not backend.endswith("-heads") else None)
            greedy = f" greedy {greedy}" if greedy else ""
            words.append(f"{backend} {failure or f'{float(error):.1e}{greedy}'}")
        entry["checked"], entry["passed"] = words, good
        failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {entry['name']}: {'; '.join(words) or 'not checked'}"
              f" | prompt {entry['prompt']}, redrawn {len(entry['redrawn'])},"
              f" gaps {entry['greedy_gap']:.0e} {entry['decision_gap']:.0e}"
              f" | {shown(entry['shape'])}", flush=True)
        if good and discard:
            shutil.rmtree(out / entry["name"])
    return failed


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--family", choices=[*FAMILIES, "all"], required=True)
    p.add_argument("--count", type=int, default=20)
    p.add_argument("--seed", type=int, default=1, help="checkpoint i is drawn from seed + i")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--margin", type=float, default=1e-5)
    p.add_argument("--noise", type=float, default=3e-5)
    p.add_argument("--check", action="store_true")
    p.add_argument("--recheck", action="store_true", help="check what an earlier run made")
    p.add_argument("--discard", action="store_true")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for family in (FAMILIES if a.family == "all" else [a.family]):
        out = a.out / family
        out.mkdir(exist_ok=True)
        manifest = out / "MANIFEST.json"
        entries = json.loads(manifest.read_text()) if a.recheck else []
        for seed in () if a.recheck else range(a.seed, a.seed + a.count):
            entries.append(one(family, seed, out, a.margin, a.noise))
            manifest.write_text(json.dumps(entries, indent=1) + "\n")
            print(f"made {entries[-1]['name']}", file=sys.stderr, flush=True)
        lost = check(out, entries, a.discard) if a.check or a.recheck else 0
        manifest.write_text(json.dumps(entries, indent=1) + "\n")
        redrawn = [r for e in entries for r in e["redrawn"]]
        ties = sum(min(r["greedy_gap"], r["decision_gap"]) < a.margin for r in redrawn)
        print(f"{family}: {len(entries)} checkpoints, {ties} redrawn for a tie,"
              f" {len(redrawn) - ties} for noise"
              + (f", {lost} failed" if a.check or a.recheck else ""), flush=True)
        failed += lost
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
