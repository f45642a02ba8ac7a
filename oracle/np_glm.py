"""GLM-5.2 (glm_moe_dsa) forward in numpy float64; imports no reference code.

 forward(tokens)            full causal forward (absorbed form NOT used)
 State / step(state, tok)   one token from the continuation state (absorbed MLA form)
 mtp(...)                   draft head rows
"""
import json, os, sys
import numpy as np
from gdo_npst import SafeTensors, load_ref


def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def layernorm(x, w, b, eps):
    m = x.mean(-1, keepdims=True)
    v = ((x - m) ** 2).mean(-1, keepdims=True)
    return (x - m) / np.sqrt(v + eps) * w + b


def silu(x):
    return x / (1 + np.exp(-x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rope_pairs(x, ang):
    """interleaved: pair (2j,2j+1) turned by ang[...,j]; result stays interleaved."""
    a, b = x[..., 0::2], x[..., 1::2]
    c, s = np.cos(ang), np.sin(ang)
    out = np.empty_like(x)
    out[..., 0::2] = a * c - b * s
    out[..., 1::2] = b * c + a * s
    return out


class Margins:
    def __init__(self):
        self.router = np.inf
        self.index = np.inf
        self.group = np.inf

    def note(self, kind, scores, k):
        """scores 1d, distance between the k-th and the k+1-th best"""
        s = np.sort(scores[np.isfinite(scores)])[::-1]
        if len(s) > k:
            setattr(self, kind, min(getattr(self, kind), s[k - 1] - s[k]))


class Glm:
    def __init__(self, folder):
        self.cfg = c = json.load(open(os.path.join(folder, "config.json")))
        self.st = SafeTensors(folder)
        self.H = c["num_attention_heads"]
        self.dn, self.dr, self.dv = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        self.L = c["num_hidden_layers"]
        self.eps = c["rms_norm_eps"]
        self.eps_lora = 1e-6
        theta = c["rope_parameters"]["rope_theta"]
        self.inv_freq = theta ** (-np.arange(0, self.dr, 2) / self.dr)
        if c.get("indexer_types"):
            self.itypes = c["indexer_types"]
        elif c.get("index_topk_pattern"):
            self.itypes = [{"F": "full", "S": "shared"}[x] for x in c["index_topk_pattern"]]
        else:
            f, o = max(c.get("index_topk_freq", 1), 1), c.get("index_skip_topk_offset", 2)
            self.itypes = ["full" if max(i - o + 1, 0) % f == 0 else "shared" for i in range(self.L)]
        self.m = Margins()
        self._w = {}

    def W(self, name):
        if name not in self._w:
            st = self.st
            w = st.get(name)
            if st.dtype(name) == "F8_E4M3":
                s = st.get(name + "_scale_inv")
                s = np.repeat(np.repeat(s, 128, 0), 128, 1)[: w.shape[0], : w.shape[1]]
                w = w * s
            self._w[name] = w
        return self._w[name]

    # ---- pieces -------------------------------------------------------
    def ang(self, pos):
        return np.asarray(pos, float)[..., None] * self.inv_freq

    def mlp(self, x, p):
        return (silu(x @ self.W(p + "gate_proj.weight").T) * (x @ self.W(p + "up_proj.weight").T)) @ self.W(p + "down_proj.weight").T

    def moe(self, x, p):
        """x [T,h]"""
        c = self.cfg
        E, G = c["n_routed_experts"], c["n_group"]
        s = sigmoid(x @ self.W(p + "gate.weight").T)
        pick = s + self.W(p + "gate.e_score_correction_bias")
        out = np.zeros_like(x)
        for t in range(x.shape[0]):
            sc = pick[t].copy()
            if G > 1:
                gs = np.sort(sc.reshape(G, -1), -1)[:, -2:].sum(-1)
                self.m.note("group", gs, c["topk_group"])
                keep = np.argsort(-gs, kind="stable")[: c["topk_group"]]
                allow = np.zeros(G, bool)
                allow[keep] = True
                sc[~np.repeat(allow, E // G)] = -np.inf
            k = c["num_experts_per_tok"]
            self.m.note("router", sc, k)
            sel = np.argsort(-sc, kind="stable")[:k]
            w = s[t, sel]
            if c["norm_topk_prob"]:
                w = w / (w.sum() + 1e-20)
            w = w * c["routed_scaling_factor"]
            for e, we in zip(sel, w):
                out[t] += we * self.mlp(x[t], f"{p}experts.{e}.")
        return out + self.mlp(x, p + "shared_experts.")

    def ffn(self, i, x):
        p = f"model.layers.{i}.mlp."
        dense = i < self.cfg["first_k_dense_replace"]
        return self.mlp(x, p) if dense else self.moe(x, p)

    def qkv(self, i, x, pos):
        """x [T,h] -> q_nope [T,H,dn], q_rope [T,H,dr], latent [T,kvl] (normed), k_rope [T,dr], q_resid"""
        c, p = self.cfg, f"model.layers.{i}.self_attn."
        qr = rms(x @ self.W(p + "q_a_proj.weight").T, self.W(p + "q_a_layernorm.weight"), self.eps_lora)
        q = (qr @ self.W(p + "q_b_proj.weight").T).reshape(len(x), self.H, self.dn + self.dr)
        a = self.ang(pos)
        qn, qp = q[..., : self.dn], rope_pairs(q[..., self.dn:], a[:, None])
        kv = x @ self.W(p + "kv_a_proj_with_mqa.weight").T
        lat = rms(kv[:, : c["kv_lora_rank"]], self.W(p + "kv_a_layernorm.weight"), self.eps_lora)
        kr = rope_pairs(kv[:, c["kv_lora_rank"]:], a)
        return qn, qp, lat, kr, qr

    def idx_qkw(self, i, x, qr, pos):
        """indexer query [T,Hi,Di], key [T,Di], head weights [T,Hi]"""
        c, p = self.cfg, f"model.layers.{i}.self_attn.indexer."
        Hi, Di, dr = c["index_n_heads"], c["index_head_dim"], self.dr
        a = self.ang(pos)
        q = (qr @ self.W(p + "wq_b.weight").T).reshape(len(x), Hi, Di)
        q = np.concatenate([rope_pairs(q[..., :dr], a[:, None]), q[..., dr:]], -1)
        k = layernorm(x @ self.W(p + "wk.weight").T, self.W(p + "k_norm.weight"), self.W(p + "k_norm.bias"), 1e-6)
        k = np.concatenate([rope_pairs(k[..., :dr], a), k[..., dr:]], -1)
        w = x @ self.W(p + "weights_proj.weight").T * Hi ** -0.5
        return q, k, w

    def select(self, iq, ik, iw, t):
        """positions (<=t) chosen for query t; iq [Hi,Di], ik [>=t+1,Di], iw [Hi]"""
        k = self.cfg["index_topk"]
        if t + 1 <= k:
            return np.arange(t + 1)
        sc = iw @ np.maximum(iq @ ik[: t + 1].T * iq.shape[-1] ** -0.5, 0)
        self.m.note("index", sc, k)
        return np.sort(np.argsort(-sc, kind="stable")[:k])

    # ---- full forward -------------------------------------------------
    def block(self, i, x, pos, sel, full):
        """sel: list of index arrays per query from the last full layer (or None). Non-absorbed MLA."""
        P = f"model.layers.{i}."
        h = rms(x, self.W(P + "input_layernorm.weight"), self.eps)
        qn, qp, lat, kr, qr = self.qkv(i, h, pos)
        if full:
            iq, ik, iw = self.idx_qkw(i, h, qr, pos)
            sel = [self.select(iq[t], ik, iw[t], t) for t in range(len(x))]
        kvb = (lat @ self.W(P + "self_attn.kv_b_proj.weight").T).reshape(len(x), self.H, self.dn + self.dv)
        kn, v = kvb[..., : self.dn], kvb[..., self.dn:]
        o = np.zeros((len(x), self.H, self.dv))
        for t in range(len(x)):
            s = sel[t]
            sc = np.einsum("hd,shd->hs", qn[t], kn[s]) + qp[t] @ kr[s].T
            a = softmax(sc * (self.dn + self.dr) ** -0.5)
            o[t] = np.einsum("hs,shd->hd", a, v[s])
        x = x + o.reshape(len(x), -1) @ self.W(P + "self_attn.o_proj.weight").T
        h = rms(x, self.W(P + "post_attention_layernorm.weight"), self.eps)
        return x + self.ffn(i, h), sel

    def forward(self, tokens, want_hidden=False):
        x = self.W("model.embed_tokens.weight")[np.asarray(tokens)]
        pos = np.arange(len(tokens))
        sel = None
        for i in range(self.L):
            x, sel = self.block(i, x, pos, sel, self.itypes[i] == "full")
        h = rms(x, self.W("model.norm.weight"), self.eps)
        lg = h @ self.W("lm_head.weight").T
        return (lg, x, h) if want_hidden else lg

    def mtp(self, tokens, hidden):
        """hidden [T,h]; row i uses token i+1; returns [T-1,V]"""
        n = self.L
        P = f"model.layers.{n}."
        e = self.W("model.embed_tokens.weight")[np.asarray(tokens[1:])]
        x = np.concatenate([rms(e, self.W(P + "enorm.weight"), self.eps),
                            rms(hidden[:-1], self.W(P + "hnorm.weight"), self.eps)], -1) @ self.W(P + "eh_proj.weight").T
        x, _ = self.block(n, x, np.arange(len(x)), None, True)
        return rms(x, self.W(P + "shared_head.norm.weight"), self.eps) @ self.W("lm_head.weight").T

    # ---- incremental --------------------------------------------------
    def new_state(self):
        c = self.cfg
        return {"n": 0,
                "lat": [np.zeros((0, c["kv_lora_rank"])) for _ in range(self.L)],
                "kr": [np.zeros((0, self.dr)) for _ in range(self.L)],
                "ik": [np.zeros((0, c["index_head_dim"])) if self.itypes[i] == "full" else None for i in range(self.L)]}

    def step(self, st, tok):
        t = st["n"]
        x = self.W("model.embed_tokens.weight")[tok][None]
        sel = None
        for i in range(self.L):
            P = f"model.layers.{i}."
            h = rms(x, self.W(P + "input_layernorm.weight"), self.eps)
            qn, qp, lat, kr, qr = self.qkv(i, h, [t])
            st["lat"][i] = np.concatenate([st["lat"][i], lat])
            st["kr"][i] = np.concatenate([st["kr"][i], kr])
            if self.itypes[i] == "full":
                iq, ik, iw = self.idx_qkw(i, h, qr, [t])
                st["ik"][i] = np.concatenate([st["ik"][i], ik])
                sel = self.select(iq[0], st["ik"][i], iw[0], t)
            # absorbed form: fold kv_b into q and into the output
            kvb = self.W(P + "self_attn.kv_b_proj.weight").reshape(self.H, self.dn + self.dv, -1)
            ql = np.einsum("hd,hdl->hl", qn[0], kvb[:, : self.dn])
            L_, R_ = st["lat"][i][sel], st["kr"][i][sel]
            a = softmax((ql @ L_.T + qp[0] @ R_.T) * (self.dn + self.dr) ** -0.5)
            o = np.einsum("hl,hdl->hd", a @ L_, kvb[:, self.dn:])
            x = x + o.reshape(1, -1) @ self.W(P + "self_attn.o_proj.weight").T
            x = x + self.ffn(i, rms(x, self.W(P + "post_attention_layernorm.weight"), self.eps))
        st["n"] = t + 1
        return (rms(x, self.W("model.norm.weight"), self.eps) @ self.W("lm_head.weight").T)[0]


def check(folder):
    ref, T = load_ref(folder)
    m = Glm(folder)
    ids = ref["full_ids"]
    lg, xpre, xpost = m.forward(ids, True)
    sc = np.abs(T["logits"]).max()
    e_full = np.abs(lg - T["logits"]).max() / sc
    per = np.abs(lg - T["logits"]).max(-1) / sc
    st = m.new_state()
    rows = np.array([m.step(st, t) for t in ids])
    e_inc = np.abs(rows - lg).max() / sc
    mm = (m.m.router, m.m.group, m.m.index)
    e1 = np.abs(m.mtp(ids, xpost) - T["mtp_logits_postnorm"]).max() / np.abs(T["mtp_logits_postnorm"]).max()
    e2 = np.abs(m.mtp(ids, xpre) - T["mtp_logits_prenorm"]).max() / np.abs(T["mtp_logits_prenorm"]).max()
    arg = (lg.argmax(-1) == np.array(ref["teacher_forced_argmax"])).all()
    bad = np.nonzero(per > 1e-4)[0]
    print(f"{folder}: full-vs-ref {e_full:.2e} incremental-vs-full {e_inc:.2e} mtp post {e1:.2e} pre {e2:.2e} "
          f"argmax-equal {arg} | margins router {mm[0]:.2e} group {mm[1]:.2e} index {mm[2]:.2e} | first bad row "
          f"{bad[:1]} n_bad {len(bad)}")
    return dict(full=e_full, inc=e_inc, mtp_post=e1, mtp_pre=e2, router=mm[0], group=mm[1], index=mm[2])


if __name__ == "__main__":
    import glob
    for f in sys.argv[1:] or sorted(glob.glob("checkpoints/glm-*")):
        check(f)
