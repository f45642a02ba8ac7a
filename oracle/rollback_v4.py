"""Checks the rollback rule: with ring rows window-1+m and raw compressor rows r+m (HCA) / 2r+m (CSA)
the state m tokens earlier is rebuilt exactly."""
import sys, copy, numpy as np
from np_deepseek_v4 import V4, load_ref


class V4R(V4):
    M = 5

    def new_state(self):
        S = super().new_state()
        for l in S["layers"]:
            l["ringx"] = l["ring"].copy()
            for nm in ("c", "i"):
                if nm in l:
                    l[nm]["hkv"], l[nm]["hg"] = l[nm]["kv"].copy(), l[nm]["g"].copy()
        return S

    def push(self, cs, x, t, r, p, indexer=False):
        keep = (2 * r if r == 4 else r) + self.M
        cs["hkv"] = np.concatenate([cs["hkv"], self.lin(x, p + "wkv")])[-keep:]
        cs["hg"] = np.concatenate([cs["hg"], self.lin(x, p + "wgate") + self.W(p + "ape")[t % r]])[-keep:]
        super().push(cs, x, t, r, p, indexer)

    def step(self, S, tok):
        before = [l["ring"] for l in S["layers"]]
        out = super().step(S, tok)
        for l, b in zip(S["layers"], before):
            new = l["ring"][-1:]
            l["ringx"] = np.concatenate([l["ringx"], new])[-(self.win - 1 + self.M):]
        return out

    def rollback(self, S, m):
        n = S["n"] - m
        for i, l in enumerate(S["layers"]):
            r = self.ratio[i]
            l["ringx"] = l["ringx"][: len(l["ringx"]) - m]
            l["ring"] = l["ringx"][-(self.win - 1):]
            if not r:
                continue
            for nm in ("c", "i") if r == 4 else ("c",):
                cs = l[nm]
                hk, hg = cs["hkv"][: len(cs["hkv"]) - m], cs["hg"][: len(cs["hg"]) - m]
                o = n % r
                cs["out"] = cs["out"][: n // r]
                cs["kv"], cs["g"] = hk[len(hk) - o:], hg[len(hg) - o:]
                if r == 4:
                    d = hk.shape[-1] // 2
                    if n // r == 0:
                        cs["pkv"], cs["pg"] = np.zeros((r, d)), np.full((r, d), -np.inf)
                    else:
                        e = len(hk) - o
                        cs["pkv"], cs["pg"] = hk[e - r:e, :d], hg[e - r:e, :d]
                cs["hkv"], cs["hg"] = hk, hg
        S["n"] = n


for f in sys.argv[1:] or ["checkpoints/deepseek_v4-101", "checkpoints/deepseek_v4-303"]:
    ref, T = load_ref(f)
    ids = ref["full_ids"]
    m = V4R(f)
    lg = m.forward(ids)
    S, worst, rng, k = m.new_state(), 0, np.random.default_rng(0), 0
    while k < len(ids):
        rows = m.step(S, ids[k])
        worst = max(worst, np.abs(rows - lg[k]).max())
        k += 1
        if rng.random() < 0.3:                      # speculative wrong tokens, then roll back
            d = int(rng.integers(1, V4R.M + 1))
            for _ in range(d):
                m.step(S, int(rng.integers(0, m.cfg["vocab_size"])))
            m.rollback(S, d)
    print(f, "decode with random rollbacks vs full: %.2e" % (worst / np.abs(lg).max()))
