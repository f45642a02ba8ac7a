#!/usr/bin/env python3
"""Independent float64 numpy forward of Kimi K3, written from a description of the model only: token-by-token decode
from the state list (MLA in absorbed form over the 576-wide latent rows), plus a whole-sequence run through the same code in
chunks.  usage: np_kimi_k3.py CKPT_DIR..."""
import os
os.environ.setdefault("OMP_NUM_THREADS", "1"); os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import sys, json, struct
import numpy as np

E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])


class ST:
    def __init__(self, path):
        self.raw = np.memmap(path, dtype=np.uint8, mode="r"); n = struct.unpack("<Q", bytes(self.raw[:8]))[0]
        self.h = json.loads(bytes(self.raw[8:8 + n])); self.h.pop("__metadata__", None); self.b = 8 + n

    def __call__(self, k):
        v = self.h[k]; a, e = v["data_offsets"]; r = np.array(self.raw[self.b + a:self.b + e]); t = v["dtype"]
        if t == "BF16": x = (r.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        elif t == "F32": x = r.view(np.float32).astype(np.float64)
        elif t == "U8": x = r
        else: raise ValueError(t)
        return x.reshape(v["shape"])


class Shards:
    """All files of a checkpoint as one table."""
    def __init__(self, d):
        index = d + "/model.safetensors.index.json"
        names = sorted(set(json.load(open(index))["weight_map"].values())) if os.path.exists(index) else ["model.safetensors"]
        self.of = {k: f for f in (ST(f"{d}/{n}") for n in names) for k in f.h}; self.h = self.of

    def __call__(self, k): return self.of[k](k)


def sig(x): return 1.0 / (1.0 + np.exp(-x))
def rms(x, w, eps): return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


class K3:
    def __init__(self, d):
        self.t = Shards(d); c = json.load(open(d + "/config.json")); self.c = c.get("text_config", c)
        self.P = "language_model." if any(k.startswith("language_model.") for k in self.t.h) else ""
        la = self.c["linear_attn_config"]; self.is_kda = {x - 1 for x in la["kda_layers"]}; self.cache = {}

    def w(self, k):
        if k not in self.cache:
            n = self.P + k
            if n in self.t.h: x = self.t(n)
            else:                                                    # routed expert in MXFP4
                p, s = self.t(n[:-6] + "weight_packed"), self.t(n[:-6] + "weight_scale")
                nib = np.empty((p.shape[0], p.shape[1] * 2), np.uint8); nib[:, 0::2] = p & 15; nib[:, 1::2] = p >> 4
                x = (E2M1[nib].reshape(s.shape + (32,)) * np.ldexp(1.0, s.astype(int) - 127)[..., None]).reshape(nib.shape)
            self.cache[k] = x
        return self.cache[k]

    def new_state(self):
        c = self.c; la = c["linear_attn_config"]; n, d, K = la["num_heads"], la["head_dim"], la["short_conv_kernel_size"]
        return [dict(S=np.zeros((n, d, d)), **{x: np.zeros((K - 1, n * d)) for x in "qkv"}) if i in self.is_kda else
                dict(lat=np.zeros((0, c["kv_lora_rank"] + c["qk_rope_head_dim"]))) for i in range(c["num_hidden_layers"])]

    def situ(self, g, u):
        b, l = self.c["activation_situ_beta"], self.c["activation_situ_linear_beta"]
        return b * np.tanh(g / b) * sig(g) * l * np.tanh(u / l)

    def mix(self, cur, blocks, n):
        if not blocks: return cur
        wq = self.w(n + "_norm.weight") * self.w(n + "_proj.weight")[0]; v = blocks + [cur]
        s = np.stack([(x @ wq) / np.sqrt((x * x).mean(-1) + self.c["rms_norm_eps"]) for x in v])   # [n+1,T]
        s = np.exp(s - s.max(0)); s /= s.sum(0)
        return sum(s[i][:, None] * v[i] for i in range(len(v)))

    def kda(self, x, a, st):
        la = self.c["linear_attn_config"]; n, d, K = la["num_heads"], la["head_dim"], la["short_conv_kernel_size"]; T = len(x); z = {}
        for s in "qkv":
            p = np.concatenate([st[s], x @ self.w(a + s + "_proj.weight").T]); st[s] = p[len(p) - (K - 1):].copy()
            wt = self.w(a + s + "_conv1d.weight")[:, 0, :]
            y = sum(wt[:, j] * p[j:j + T] for j in range(K)); z[s] = (y * sig(y)).reshape(T, n, d)
        q = z["q"] / np.sqrt((z["q"] ** 2).sum(-1, keepdims=True) + 1e-6) / np.sqrt(d)
        k = z["k"] / np.sqrt((z["k"] ** 2).sum(-1, keepdims=True) + 1e-6); v = z["v"]
        f = (x @ self.w(a + "f_a_proj.weight").T @ self.w(a + "f_b_proj.weight").T + self.w(a + "dt_bias")).reshape(T, n, d)
        dec = np.exp(la["gate_lower_bound"] * sig(np.exp(self.w(a + "A_log")[:n])[None, :, None] * f))
        beta = sig(x @ self.w(a + "b_proj.weight").T); o = np.empty((T, n, d)); S = st["S"]
        for t in range(T):
            for h in range(n):
                S[h] = dec[t, h][:, None] * S[h]
                u = beta[t, h] * (v[t, h] - k[t, h] @ S[h])
                S[h] = S[h] + np.outer(k[t, h], u)
                o[t, h] = q[t, h] @ S[h]
        o = rms(o, self.w(a + "o_norm.weight"), self.c["rms_norm_eps"]) * sig(x @ self.w(a + "g_proj.weight").T).reshape(T, n, d)
        return o.reshape(T, n * d) @ self.w(a + "o_proj.weight").T

    def mla(self, x, a, st):
        c = self.c; A, dn, dr, dv, r = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
        T = len(x); kvb = self.w(a + "kv_b_proj.weight").reshape(A, dn + dv, r)
        q = (rms(x @ self.w(a + "q_a_proj.weight").T, self.w(a + "q_a_layernorm.weight"), 1e-6) @ self.w(a + "q_b_proj.weight").T).reshape(T, A, dn + dr)
        ckv = x @ self.w(a + "kv_a_proj_with_mqa.weight").T
        row = np.concatenate([rms(ckv[:, :r], self.w(a + "kv_a_layernorm.weight"), 1e-6), ckv[:, r:]], 1)     # what is cached
        st["lat"] = np.concatenate([st["lat"], row]); M = st["lat"]; N = len(M); off = N - T
        out = np.empty((T, A, dv)); mask = np.arange(N)[None] > (off + np.arange(T))[:, None]
        for h in range(A):
            qa = np.concatenate([q[:, h, :dn] @ kvb[h, :dn], q[:, h, dn:]], 1)                                # absorbed query
            s = np.where(mask, -np.inf, qa @ M.T / np.sqrt(dn + dr)); s = np.exp(s - s.max(1, keepdims=True)); s /= s.sum(1, keepdims=True)
            out[:, h] = (s @ M[:, :r]) @ kvb[h, dn:].T
        o = out.reshape(T, A * dv)
        if c["mla_use_output_gate"]: o = o * sig(x @ self.w(a + "g_proj.weight").T)
        return o @ self.w(a + "o_proj.weight").T

    def ffn(self, x, g, u, d): return self.situ(x @ self.w(g).T, x @ self.w(u).T) @ self.w(d).T

    def moe(self, x, m):
        c = self.c; s = sig(x @ self.w(m + "gate.weight").T); ch = s + self.w(m + "gate.e_score_correction_bias")
        z = x @ self.w(m + "routed_expert_down_proj.weight").T; y = np.zeros_like(z)
        for t in range(len(x)):
            sel = np.argsort(-ch[t], kind="stable")[:c["num_experts_per_token"]]
            g = s[t, sel]
            if c["moe_renormalize"] and len(sel) > 1: g = g / (g.sum() + 1e-20)
            g = g * c["routed_scaling_factor"]
            for e, ge in zip(sel, g): y[t] += ge * self.ffn(z[t], *(f"{m}experts.{e}.{n}.weight" for n in ("w1", "w3", "w2")))
        if c["latent_moe_use_norm"]: y = rms(y, self.w(m + "routed_expert_norm.weight"), c["rms_norm_eps"])
        return y @ self.w(m + "routed_expert_up_proj.weight").T + self.ffn(x, *(f"{m}shared_experts.{n}.weight" for n in ("gate_proj", "up_proj", "down_proj")))

    def forward(self, ids, st):
        c = self.c; eps = c["rms_norm_eps"]; cur = self.w("model.embed_tokens.weight")[ids]; blocks = []
        for i in range(c["num_hidden_layers"]):
            L = f"model.layers.{i}."; h = self.mix(cur, blocks, L + "self_attention_res")
            seal = i % c["attn_res_block_size"] == 0
            if seal: blocks = blocks + [cur]
            h = rms(h, self.w(L + "input_layernorm.weight"), eps)
            y = self.kda(h, L + "self_attn.", st[i]) if i in self.is_kda else self.mla(h, L + "self_attn.", st[i])
            cur = y if seal else cur + y
            h = rms(self.mix(cur, blocks, L + "mlp_res"), self.w(L + "post_attention_layernorm.weight"), eps)
            cur = cur + (self.ffn(h, *(f"{L}mlp.{n}.weight" for n in ("gate_proj", "up_proj", "down_proj"))) if i < c["first_k_dense_replace"]
                         else self.moe(h, L + "block_sparse_moe."))
        return rms(self.mix(cur, blocks, "model.output_attn_res"), self.w("model.norm.weight"), eps) @ self.w("lm_head.weight").T


def cmp(a, b): return float(np.abs(a - b).max() / np.abs(b).max()), float(np.linalg.norm(a - b) / np.linalg.norm(b))


def main(d):
    m = K3(d); ref = json.load(open(d + "/ref.json")); R = ST(d + "/ref.safetensors")("logits"); ids = np.array(ref["full_ids"]); P = len(ref["prompt_ids"])
    full = m.forward(ids, m.new_state())
    print(d, "full forward: max-rel %.3e  l2-rel %.3e" % cmp(full, R), "argmax equal:", (full.argmax(-1) == np.array(ref["argmax"])).all())
    st = m.new_state(); a = [m.forward(ids[:P - 5], st), m.forward(ids[P - 5:P], st)]; gen = []; nxt = int(a[-1][-1].argmax())
    for _ in ref["greedy_ids"]:
        gen.append(nxt); a.append(m.forward(np.array([nxt]), st)); nxt = int(a[-1][-1].argmax())
    inc = np.concatenate(a)
    print("   incremental vs own full: max-rel %.3e" % cmp(inc, full)[0], " vs ref: %.3e" % cmp(inc, R)[0], "greedy equal:", gen == ref["greedy_ids"])
    print("   state shapes:", {i: {k: list(v.shape) for k, v in st[i].items()} for i in (0, len(st) - 1)})


if __name__ == "__main__":
    for d in sys.argv[1:]: main(d.rstrip("/"))
