"""DeepSeek-V4 forward in numpy float64; imports no reference code.

 forward(tokens)   whole-sequence evaluation (matrix form over windows)
 step(state, tok)  one token from the continuation state
 Options: qat=True -> the official KV fp8 / indexer Hadamard+fp4 simulation;
          shared_clamp=False -> first release of the official code (shared expert without swiglu_limit).
"""
import json, os, sys
import numpy as np
from gdo_npst import SafeTensors, load_ref, E4M3, E2M1


def rms0(x, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x / (1 + np.exp(-x))


def softplus(x):
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def softmax(x, axis=-1):
    m = x.max(axis, keepdims=True)
    e = np.exp(x - m)
    return e / e.sum(axis, keepdims=True)


def rope_tail(x, ang, sign=1.0):
    """turn the LAST 2*len(ang) channels, interleaved pairs"""
    d = 2 * ang.shape[-1]
    out = x.copy()
    a, b = x[..., -d::2], x[..., -d + 1::2]
    c, s = np.cos(ang), sign * np.sin(ang)
    out[..., -d::2] = a * c - b * s
    out[..., -d + 1::2] = b * c + a * s
    return out


def fwht(x):
    n = x.shape[-1]
    y = x.copy().reshape(-1, n)
    h = 1
    while h < n:
        z = y.reshape(-1, n // (2 * h), 2, h)
        y = np.stack([z[:, :, 0] + z[:, :, 1], z[:, :, 0] - z[:, :, 1]], 2).reshape(-1, n)
        h *= 2
    return y.reshape(x.shape) * n ** -0.5


_POS8 = np.unique(E4M3[:127])          # non-negative e4m3 values, ascending, index parity = mantissa lsb parity
_POS4 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6.])


def _round_to(grid, x):
    """round to nearest, ties to even code"""
    a = np.abs(x)
    i = np.clip(np.searchsorted(grid, a), 1, len(grid) - 1)
    lo, hi = grid[i - 1], grid[i]
    dl, dh = a - lo, hi - a
    up = (dh < dl) | ((dh == dl) & (i % 2 == 0))
    return np.sign(x) * np.where(up, hi, lo)


def fake_quant(x, block, grid, top, floor):
    y = x.reshape(x.shape[:-1] + (-1, block))
    amax = np.maximum(np.abs(y).max(-1, keepdims=True), floor)
    s = 2.0 ** np.ceil(np.log2(amax / top))
    return (_round_to(grid, np.clip(y / s, -top, top)) * s).reshape(x.shape)


def fake_fp8(x, block=64):
    return fake_quant(x, block, _POS8, 448.0, 1e-4)


def fake_fp4(x, block=32):
    return fake_quant(x, block, _POS4, 6.0, 6 * 2.0 ** -126)


class Margins:
    router = np.inf
    index = np.inf

    def note(self, kind, scores, k):
        s = np.sort(scores[np.isfinite(scores)])[::-1]
        if len(s) > k:
            setattr(self, kind, min(getattr(self, kind), s[k - 1] - s[k]))


class V4:
    def __init__(self, folder, qat=False, shared_clamp=True):
        self.cfg = c = json.load(open(os.path.join(folder, "config.json")))
        self.st = SafeTensors(folder)
        self.qat, self.shared_clamp = qat, shared_clamp
        self.L, self.D, self.HC = c["num_hidden_layers"], c["hidden_size"], c["hc_mult"]
        self.H, self.hd, self.rd = c["num_attention_heads"], c["head_dim"], c["qk_rope_head_dim"]
        self.eps, self.heps, self.win = c["rms_norm_eps"], c["hc_eps"], c["sliding_window"]
        self.ratio = c["compress_ratios"]
        self.freq_main = self.freqs(c["rope_theta"], None)
        self.freq_comp = self.freqs(c["compress_rope_theta"], c["rope_scaling"])
        self.m = Margins()
        self._w = {}

    def freqs(self, base, ys):
        d = self.rd
        f = base ** (-np.arange(0, d, 2) / d)
        if ys:
            def corr(rot):
                return d * np.log(ys["original_max_position_embeddings"] / (rot * 2 * np.pi)) / (2 * np.log(base))
            lo, hi = max(np.floor(corr(ys["beta_fast"])), 0), min(np.ceil(corr(ys["beta_slow"])), d - 1)
            if lo == hi:
                hi += 0.001
            ramp = np.clip((np.arange(d // 2) - lo) / (hi - lo), 0, 1)
            f = f / ys["factor"] * ramp + f * (1 - ramp)
        return f

    def W(self, name):
        if name not in self._w:
            st = self.st
            w, dt = st.get(name), st.dtype(name)
            if dt == "F8_E4M3":
                s = st.get(name[: -len("weight")] + "scale")
                w = w * np.repeat(np.repeat(s, 128, 0), 128, 1)[: w.shape[0], : w.shape[1]]
            elif dt == "I8":
                s = st.get(name[: -len("weight")] + "scale")
                v = np.empty((w.shape[0], w.shape[1] * 2))
                v[:, 0::2], v[:, 1::2] = E2M1[w & 15], E2M1[w >> 4]
                w = v * np.repeat(s, 32, 1)
            self._w[name] = w
        return self._w[name]

    def lin(self, x, name):
        return x @ self.W(name + ".weight").T

    def norm(self, x, name):
        return rms0(x, self.eps) * self.W(name + ".weight")

    # ---- hyper connections --------------------------------------------
    def hc_pre(self, s, p):
        """s [T,hc,D] -> x [T,D], post [T,hc], comb [T,hc,hc] (comb[from, to])"""
        n = self.HC
        f = rms0(s.reshape(len(s), -1), self.eps)
        mix = f @ self.W(p + "_fn").T
        sc, b = self.W(p + "_scale"), self.W(p + "_base")
        pre = sigmoid(mix[:, :n] * sc[0] + b[:n]) + self.heps
        post = 2 * sigmoid(mix[:, n:2 * n] * sc[1] + b[n:2 * n])
        cm = (mix[:, 2 * n:] * sc[2] + b[2 * n:]).reshape(-1, n, n)
        cm = softmax(cm, -1) + self.heps
        cm = cm / (cm.sum(1, keepdims=True) + self.heps)
        for _ in range(self.cfg["hc_sinkhorn_iters"] - 1):
            cm = cm / (cm.sum(2, keepdims=True) + self.heps)
            cm = cm / (cm.sum(1, keepdims=True) + self.heps)
        return (pre[..., None] * s).sum(1), post, cm

    def hc_post(self, y, s, post, cm):
        return post[..., None] * y[:, None] + np.einsum("tjk,tjd->tkd", cm, s)

    def hc_head(self, s, p):
        f = rms0(s.reshape(len(s), -1), self.eps)
        pre = sigmoid(f @ self.W(p + "hc_head_fn").T * self.W(p + "hc_head_scale") + self.W(p + "hc_head_base")) + self.heps
        return (pre[..., None] * s).sum(1)

    # ---- MoE ------------------------------------------------------------
    def expert(self, x, p, clamp=True):
        g, u = self.lin(x, p + "w1"), self.lin(x, p + "w3")
        if clamp:
            lim = self.cfg["swiglu_limit"]
            g, u = np.minimum(g, lim), np.clip(u, -lim, lim)
        return self.lin(silu(g) * u, p + "w2")

    def moe(self, x, toks, p, hash_layer):
        c = self.cfg
        s = np.sqrt(softplus(x @ self.W(p + "gate.weight").T))
        out = np.zeros_like(x)
        k = c["num_experts_per_tok"]
        for t in range(len(x)):
            if hash_layer:
                sel = self.st.get(p + "gate.tid2eid")[toks[t]]
            else:
                sc = s[t] + self.W(p + "gate.bias")
                self.m.note("router", sc, k)
                sel = np.argsort(-sc, kind="stable")[:k]
            w = s[t, sel]
            w = w / w.sum() * c["routed_scaling_factor"]
            for e, we in zip(sel, w):
                out[t] += we * self.expert(x[t], f"{p}experts.{e}.")
        return out + self.expert(x, p + "shared_experts.", self.shared_clamp)

    # ---- attention pieces ------------------------------------------------
    def freq_of(self, r):
        return self.freq_comp if r else self.freq_main

    def q_and_kv(self, x, pos, p, r):
        ang = np.asarray(pos, float)[:, None] * self.freq_of(r)
        qr = self.norm(self.lin(x, p + "wq_a"), p + "q_norm")
        q = rms0(self.lin(qr, p + "wq_b").reshape(len(x), self.H, self.hd), self.eps)
        q = rope_tail(q, ang[:, None])
        kv = rope_tail(self.norm(self.lin(x, p + "wkv"), p + "kv_norm"), ang)
        if self.qat:
            kv[:, : self.hd - self.rd] = fake_fp8(kv[:, : self.hd - self.rd])
        return qr, q, kv, ang

    def finish_entry(self, e, w, r, p, indexer):
        """e [n,d] pooled -> normed, roped at position w*r (w = window number)"""
        e = self.norm(e, p + "norm")
        e = rope_tail(e, (np.asarray(w, float) * r)[:, None] * self.freq_comp)
        if self.qat:
            if indexer:
                e = fake_fp4(fwht(e))
            else:
                e[:, : self.hd - self.rd] = fake_fp8(e[:, : self.hd - self.rd])
        return e

    def compress_all(self, x, r, p, indexer=False):
        """all complete windows of the sequence at once"""
        kv, g = self.lin(x, p + "wkv"), self.lin(x, p + "wgate")
        n = len(x) // r
        kv, g = kv[: n * r].reshape(n, r, -1), g[: n * r].reshape(n, r, -1) + self.W(p + "ape")
        if r == 4:
            d = kv.shape[-1] // 2
            KV, G = np.zeros((n, 2 * r, d)), np.full((n, 2 * r, d), -np.inf)
            KV[:, r:], G[:, r:] = kv[..., d:], g[..., d:]
            KV[1:, :r], G[1:, :r] = kv[:-1, :, :d], g[:-1, :, :d]
        else:
            KV, G = kv, g
        if n == 0:
            return np.zeros((0, KV.shape[-1]))
        return self.finish_entry((KV * softmax(G, 1)).sum(1), np.arange(n), r, p, indexer)

    def index_q(self, x, qr, ang, p):
        c = self.cfg
        q = rope_tail(self.lin(qr, p + "wq_b").reshape(len(x), c["index_n_heads"], c["index_head_dim"]), ang[:, None])
        if self.qat:
            q = fake_fp4(fwht(q))
        w = self.lin(x, p + "weights_proj") * (c["index_head_dim"] ** -0.5 * c["index_n_heads"] ** -0.5)
        return q, w

    def select(self, q, w, K):
        k = self.cfg["index_topk"]
        if len(K) <= k:
            return np.arange(len(K))
        sc = w @ np.maximum(q @ K.T, 0)
        self.m.note("index", sc, k)
        return np.argsort(-sc, kind="stable")[:k]

    def attend(self, q, KV, sink):
        """q [H,hd], KV [n,hd] -> [H,hd]; sink only in the denominator"""
        s = q @ KV.T * self.hd ** -0.5
        m = np.maximum(s.max(-1), sink)
        e = np.exp(s - m[:, None])
        return (e / (e.sum(-1) + np.exp(sink - m))[:, None]) @ KV

    def out_proj(self, o, ang, p):
        """o [T,H,hd]"""
        G = self.cfg["o_groups"]
        o = rope_tail(o, ang[:, None], -1.0).reshape(len(o), G, -1)
        wa = self.W(p + "wo_a.weight").reshape(G, -1, o.shape[-1])
        return self.lin(np.einsum("tgd,grd->tgr", o, wa).reshape(len(o), -1), p + "wo_b")

    def attn_full(self, x, p, r):
        T = len(x)
        qr, q, kv, ang = self.q_and_kv(x, np.arange(T), p, r)
        sink = self.W(p + "attn_sink")
        if r:
            C = self.compress_all(x, r, p + "compressor.")
        if r == 4:
            IK = self.compress_all(x, r, p + "indexer.compressor.", True)
            iq, iw = self.index_q(x, qr, ang, p + "indexer.")
        o = np.zeros((T, self.H, self.hd))
        for t in range(T):
            rows = [kv[max(0, t - self.win + 1): t + 1]]
            if r:
                n = (t + 1) // r
                rows.append(C[self.select(iq[t], iw[t], IK[:n])] if r == 4 else C[:n])
            o[t] = self.attend(q[t], np.concatenate(rows), sink)
        return self.out_proj(o, ang, p)

    def block(self, s, toks, P, r, hash_layer, attn):
        x, post, cm = self.hc_pre(s, P + "hc_attn")
        s = self.hc_post(attn(self.norm(x, P + "attn_norm"), P + "attn.", r), s, post, cm)
        x, post, cm = self.hc_pre(s, P + "hc_ffn")
        return self.hc_post(self.moe(self.norm(x, P + "ffn_norm"), toks, P + "ffn.", hash_layer), s, post, cm)

    def forward(self, toks, want=False):
        s = np.repeat(self.W("embed.weight")[np.asarray(toks)][:, None], self.HC, 1)
        for i in range(self.L):
            s = self.block(s, toks, f"layers.{i}.", self.ratio[i], i < self.cfg["num_hash_layers"], self.attn_full)
        lg = self.lin(self.norm(self.hc_head(s, ""), "norm"), "head")
        return (lg, s) if want else lg

    def mtp(self, toks, s):
        P = "mtp.0."
        e = self.lin(self.norm(self.W("embed.weight")[np.asarray(toks[1:])], P + "enorm"), P + "e_proj")
        x = e[:, None] + self.lin(self.norm(s[:-1], P + "hnorm"), P + "h_proj")
        x = self.block(x, toks[1:], P, self.ratio[self.L], False, self.attn_full)
        return self.lin(self.norm(self.hc_head(x, P), P + "norm"), "head")

    # ---- incremental -------------------------------------------------------
    def new_state(self):
        S = {"n": 0, "layers": []}
        c = self.cfg
        for i in range(self.L):
            r, hd, di = self.ratio[i], self.hd, c["index_head_dim"]
            l = {"ring": np.zeros((0, hd))}                     # last <=win-1 kv rows (rotated, final)
            for nm, d in (("c", hd),) + ((("i", di),) if r == 4 else ()):
                if not r:
                    break
                co = 2 if r == 4 else 1
                l[nm] = {"kv": np.zeros((0, co * d)), "g": np.zeros((0, co * d)),   # open window, <= r-1 rows
                         "out": np.zeros((0, d))}                                  # finished entries
                if r == 4:
                    l[nm]["pkv"], l[nm]["pg"] = np.zeros((r, d)), np.full((r, d), -np.inf)  # Ca of the previous window
            S["layers"].append(l)
        return S

    def push(self, cs, x, t, r, p, indexer=False):
        """feed one token to a compressor state"""
        cs["kv"] = np.concatenate([cs["kv"], self.lin(x, p + "wkv")])
        cs["g"] = np.concatenate([cs["g"], self.lin(x, p + "wgate") + self.W(p + "ape")[t % r]])
        if len(cs["kv"]) < r:
            return
        kv, g = cs["kv"], cs["g"]
        if r == 4:
            d = kv.shape[-1] // 2
            KV, G = np.concatenate([cs["pkv"], kv[:, d:]]), np.concatenate([cs["pg"], g[:, d:]])
            cs["pkv"], cs["pg"] = kv[:, :d], g[:, :d]
        else:
            KV, G = kv, g
        e = (KV * softmax(G, 0)).sum(0)[None]
        cs["out"] = np.concatenate([cs["out"], self.finish_entry(e, [len(cs["out"])], r, p, indexer)])
        cs["kv"], cs["g"] = cs["kv"][:0], cs["g"][:0]

    def step(self, S, tok):
        t = S["n"]
        s = np.repeat(self.W("embed.weight")[tok][None, None], self.HC, 1)
        for i in range(self.L):
            l = S["layers"][i]

            def attn(x, p, r):
                qr, q, kv, ang = self.q_and_kv(x, [t], p, r)
                rows = [l["ring"], kv]
                if r:
                    self.push(l["c"], x, t, r, p + "compressor.")
                    C = l["c"]["out"]
                    if r == 4:
                        self.push(l["i"], x, t, r, p + "indexer.compressor.", True)
                        iq, iw = self.index_q(x, qr, ang, p + "indexer.")
                        C = C[self.select(iq[0], iw[0], l["i"]["out"])]
                    rows.append(C)
                o = self.attend(q[0], np.concatenate(rows), self.W(p + "attn_sink"))[None]
                l["ring"] = np.concatenate([l["ring"], kv])[-(self.win - 1):]
                return self.out_proj(o, ang, p)

            s = self.block(s, [tok], f"layers.{i}.", self.ratio[i], i < self.cfg["num_hash_layers"], attn)
        S["n"] = t + 1
        return self.lin(self.norm(self.hc_head(s, ""), "norm"), "head")[0]


def check(folder):
    ref, T = load_ref(folder)
    m = V4(folder)
    ids = ref["full_ids"]
    lg, s = m.forward(ids, True)
    sc = np.abs(T["logits"]).max()
    per = np.abs(lg - T["logits"]).max(-1) / sc
    S = m.new_state()
    rows = np.array([m.step(S, t) for t in ids])
    inc = np.abs(rows - lg).max() / sc
    mt = np.abs(m.mtp(ids, s) - T["mtp_logits"]).max() / np.abs(T["mtp_logits"]).max()
    bad = np.nonzero(per > 1e-4)[0]
    print(f"{folder}: full-vs-ref {per.max():.2e} incremental-vs-full {inc:.2e} mtp {mt:.2e} argmax-equal "
          f"{(lg.argmax(-1) == np.array(ref['teacher_forced_argmax'])).all()} | margins router {m.m.router:.2e} "
          f"index {m.m.index:.2e} | first bad {bad[:1]} n_bad {len(bad)}")
    return dict(full=per.max(), inc=inc, mtp=mt, router=m.m.router, index=m.m.index)


if __name__ == "__main__":
    import glob
    for f in sys.argv[1:] or sorted(glob.glob("checkpoints/deepseek_v4-*")):
        check(f)
