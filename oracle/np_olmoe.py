"""OLMoE forward in numpy float64; imports no reference code."""
import json, os, sys
import numpy as np
from gdo_npst import SafeTensors, load_ref


def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rope_half(x, ang):
    """channel j pairs with j + d/2"""
    h = x.shape[-1] // 2
    a, b = x[..., :h], x[..., h:]
    c, s = np.cos(ang), np.sin(ang)
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


class Olmoe:
    def __init__(self, folder):
        self.cfg = c = json.load(open(os.path.join(folder, "config.json")))
        self.st = SafeTensors(folder)
        self.L, self.H, self.KV = c["num_hidden_layers"], c["num_attention_heads"], c["num_key_value_heads"]
        self.hd, self.eps = c["hidden_size"] // c["num_attention_heads"], c["rms_norm_eps"]
        self.inv = c["rope_theta"] ** (-np.arange(0, self.hd, 2) / self.hd)
        self.margin = np.inf
        self._w = {}

    def W(self, n):
        if n not in self._w:
            self._w[n] = self.st.get(n)
        return self._w[n]

    def qkv(self, x, i, pos):
        c, p = self.cfg, f"model.layers.{i}.self_attn."
        q = rms(x @ self.W(p + "q_proj.weight").T, self.W(p + "q_norm.weight"), self.eps)
        k = rms(x @ self.W(p + "k_proj.weight").T, self.W(p + "k_norm.weight"), self.eps)
        v = x @ self.W(p + "v_proj.weight").T
        if c.get("clip_qkv") is not None:
            q, k, v = (np.clip(z, -c["clip_qkv"], c["clip_qkv"]) for z in (q, k, v))
        T, ang = len(x), np.asarray(pos, float)[:, None, None] * self.inv
        return (rope_half(q.reshape(T, self.H, -1), ang), rope_half(k.reshape(T, self.KV, -1), ang), v.reshape(T, self.KV, -1))

    def moe(self, x, i):
        c, p = self.cfg, f"model.layers.{i}.mlp."
        pr = softmax(x @ self.W(p + "gate.weight").T)
        out, k = np.zeros_like(x), c["num_experts_per_tok"]
        for t in range(len(x)):
            o = np.argsort(-pr[t], kind="stable")
            self.margin = min(self.margin, pr[t, o[k - 1]] - pr[t, o[k]])
            w = pr[t, o[:k]]
            if c["norm_topk_prob"]:
                w = w / w.sum()
            for e, we in zip(o[:k], w):
                q = f"{p}experts.{e}."
                out[t] += we * ((silu(x[t] @ self.W(q + "gate_proj.weight").T) * (x[t] @ self.W(q + "up_proj.weight").T)) @ self.W(q + "down_proj.weight").T)
        return out

    def attend(self, q, K, V):
        """q [H,hd], K/V [n,KV,hd]"""
        g = self.H // self.KV
        o = np.zeros((self.H, self.hd))
        for h in range(self.H):
            a = softmax(K[:, h // g] @ q[h] * self.hd ** -0.5)
            o[h] = a @ V[:, h // g]
        return o.reshape(-1)

    def layer(self, x, i, pos, att):
        P = f"model.layers.{i}."
        h = rms(x, self.W(P + "input_layernorm.weight"), self.eps)
        q, k, v = self.qkv(h, i, pos)
        x = x + att(q, k, v) @ self.W(P + "self_attn.o_proj.weight").T
        return x + self.moe(rms(x, self.W(P + "post_attention_layernorm.weight"), self.eps), i)

    def head(self, x):
        return rms(x, self.W("model.norm.weight"), self.eps) @ self.W("lm_head.weight").T

    def forward(self, toks):
        x = self.W("model.embed_tokens.weight")[np.asarray(toks)]
        for i in range(self.L):
            x = self.layer(x, i, np.arange(len(toks)),
                           lambda q, k, v: np.array([self.attend(q[t], k[: t + 1], v[: t + 1]) for t in range(len(q))]))
        return self.head(x)

    def new_state(self):
        return {"n": 0, "k": [np.zeros((0, self.KV, self.hd))] * self.L, "v": [np.zeros((0, self.KV, self.hd))] * self.L}

    def step(self, st, tok):
        x = self.W("model.embed_tokens.weight")[tok][None]
        for i in range(self.L):
            def att(q, k, v, i=i):
                st["k"][i] = np.concatenate([st["k"][i], k])
                st["v"][i] = np.concatenate([st["v"][i], v])
                return self.attend(q[0], st["k"][i], st["v"][i])[None]
            x = self.layer(x, i, [st["n"]], att)
        st["n"] += 1
        return self.head(x)[0]


def check(folder):
    ref, T = load_ref(folder)
    m = Olmoe(folder)
    ids = ref["full_ids"]
    lg = m.forward(ids)
    sc = np.abs(T["logits"]).max()
    per = np.abs(lg - T["logits"]).max(-1) / sc
    st = m.new_state()
    inc = np.abs(np.array([m.step(st, t) for t in ids]) - lg).max() / sc
    print(f"{folder}: full-vs-ref {per.max():.2e} incremental-vs-full {inc:.2e} argmax-equal "
          f"{(lg.argmax(-1) == np.array(ref['teacher_forced_argmax'])).all()} | margin router {m.margin:.2e}")
    return dict(full=per.max(), inc=inc, router=m.margin)


if __name__ == "__main__":
    import glob
    for f in sys.argv[1:] or sorted(glob.glob("checkpoints/olmoe-*")):
        check(f)
