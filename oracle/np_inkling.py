#!/usr/bin/env python3
"""Independent float64 numpy forward of Inkling, written from a description of the model only.
usage: np_inkling.py CKPT_DIR...   -> compares full forward AND token-by-token decode from state with ref.safetensors"""
import os
os.environ.setdefault("OMP_NUM_THREADS", "1"); os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import sys, json, struct
import numpy as np

E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])


def e4m3(u):
    u = u.astype(np.int64); s = np.where(u >> 7, -1.0, 1.0); e = (u >> 3) & 15; m = u & 7
    return s * np.where(e == 0, m / 8.0 * 2.0 ** -6, (1 + m / 8.0) * 2.0 ** (e.astype(float) - 7))


class ST:
    def __init__(self, path):
        self.raw = np.memmap(path, dtype=np.uint8, mode="r")
        n = struct.unpack("<Q", bytes(self.raw[:8]))[0]
        self.h = json.loads(bytes(self.raw[8:8 + n])); self.h.pop("__metadata__", None); self.b = 8 + n

    def __contains__(self, k): return k in self.h

    def __call__(self, k):
        v = self.h[k]; a, e = v["data_offsets"]; r = np.array(self.raw[self.b + a:self.b + e])
        t = v["dtype"]
        if t == "BF16": x = (r.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        elif t == "F32": x = r.view(np.float32).astype(np.float64)
        elif t == "U8": x = r
        elif t == "F8_E4M3": x = e4m3(r)
        elif t == "I64": x = r.view(np.int64)
        else: raise ValueError(t)
        return x.reshape(v["shape"])


def sig(x): return 1.0 / (1.0 + np.exp(-x))
def silu(x): return x * sig(x)
def logsig(x): return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))
def rms(x, w, eps): return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


class Inkling:
    def __init__(self, d):
        self.t = ST(d + "/model.safetensors"); self.c = json.load(open(d + "/config.json"))["text_config"]
        self.cache = {}; self.dir = d

    def w(self, k):
        if k not in self.cache:
            x = self.t(k)
            if self.t.h[k]["dtype"] == "U8":                     # NVFP4: low nibble = even column
                nib = np.empty(x.shape[:-1] + (x.shape[-1] * 2,), np.uint8)
                nib[..., 0::2] = x & 15; nib[..., 1::2] = x >> 4
                v = E2M1[nib]; sc = self.t(k + ".scale"); s2 = self.t(k + ".scale2")
                x = (v.reshape(sc.shape + (16,)) * sc[..., None]).reshape(v.shape) * s2[:, None, None]
            self.cache[k] = x
        return self.cache[k]

    def new_state(self): return dict(pos=0, layers=[dict() for _ in range(self.c["num_hidden_layers"])])

    def sconv(self, x, w, st, name):
        """x [T,C]; w [C,1,K]; y[t] = x[t] + sum_j w[:,j] * x[t-(K-1)+j]; ring = last K-1 inputs."""
        w = w[:, 0, :]; K = w.shape[1]
        prev = st.get(name); prev = np.zeros((K - 1, x.shape[1])) if prev is None else prev
        xp = np.concatenate([prev, x]); st[name] = xp[len(xp) - (K - 1):].copy()
        y = x.copy()
        for j in range(K): y = y + w[:, j] * xp[j:j + len(x)]
        return y

    def attn(self, p, x, local, st, pos0):
        c = self.c; a = p + "attn."; T = len(x); eps = c["rms_norm_eps"]
        nh, nkv, hd = ((c["swa_num_attention_heads"], c["swa_num_key_value_heads"], c["swa_head_dim"]) if local
                       else (c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]))
        W = c["sliding_window_size"]; ext = W if local else c["rel_extent"]
        q = (x @ self.w(a + "wq_du.weight").T).reshape(T, nh, hd)
        k = self.sconv(x @ self.w(a + "wk_dv.weight").T, self.w(a + "k_sconv.weight"), st, "k_conv").reshape(T, nkv, hd)
        v = self.sconv(x @ self.w(a + "wv_dv.weight").T, self.w(a + "v_sconv.weight"), st, "v_conv").reshape(T, nkv, hd)
        r = (x @ self.w(a + "wr_du.weight").T).reshape(T, nh, c["d_rel"])
        q = rms(q, self.w(a + "q_norm.weight"), eps); k = rms(k, self.w(a + "k_norm.weight"), eps)
        if "k" in st: k = np.concatenate([st["k"], k]); v = np.concatenate([st["v"], v])
        first = pos0 + T - len(k)                                    # absolute position of the oldest cached key
        keep = W - 1 if local else len(k)                            # a local layer needs W-1 past keys only
        st["k"], st["v"] = k[max(0, len(k) - keep):], v[max(0, len(v) - keep):]
        qp = pos0 + np.arange(T); kp = first + np.arange(len(k)); dist = qp[:, None] - kp[None]
        R = r @ self.w(a + "rel_logits_proj.proj")                   # [T,nh,ext]
        ok = dist >= 0
        if local: ok &= dist < W
        idx = np.clip(dist, 0, ext - 1)
        out = np.empty((T, nh, hd))
        tau = np.ones(T)
        if not local and c["log_scaling_n_floor"] is not None:
            tau = 1 + c["log_scaling_alpha"] * np.log(np.maximum((qp + 1) / c["log_scaling_n_floor"], 1.0))
        for h in range(nh):
            g = h // (nh // nkv)
            bias = np.where((dist >= 0) & (dist < ext), np.take_along_axis(R[:, h, :], idx, 1), 0.0)
            s = (q[:, h] @ k[:, g].T / hd + bias) * tau[:, None]
            s = np.where(ok, s, -np.inf); s = np.exp(s - s.max(1, keepdims=True)); s /= s.sum(1, keepdims=True)
            out[:, h] = s @ v[:, g]
        return out.reshape(T, nh * hd) @ self.w(a + "wo_ud.weight").T

    def dense(self, p, x):
        gu = x @ self.w(p + "w13_dn.weight").T
        return (silu(gu[:, 0::2]) * gu[:, 1::2]) @ self.w(p + "w2_md.weight").T * self.w(p + "global_scale")[0]

    def moe(self, p, x):
        c = self.c; E, S, K = c["n_routed_experts"], c["n_shared_experts"], c["num_experts_per_tok"]
        L = x @ self.w(p + "gate.weight").T                          # [T,E+S]
        choice = sig(L[:, :E]) + self.w(p + "gate.bias")
        W13, W2 = self.w(p + "experts.w13_weight"), self.w(p + "experts.w2_weight")
        S13, S2 = self.w(p + "shared_experts.shared_w13_weight"), self.w(p + "shared_experts.shared_w2_weight")
        scale = c["route_scale"] * self.w(p + "gate.global_scale")[0]
        y = np.zeros_like(x)
        for t in range(len(x)):
            sel = np.argsort(-choice[t], kind="stable")[:K]
            lp = logsig(np.concatenate([L[t, sel], L[t, E:]]))
            g = np.exp(lp - lp.max()); g = g / g.sum() * scale
            for e, ge in zip(sel, g[:K]):
                h = W13[e] @ x[t]; y[t] += ge * (W2[e] @ (silu(h[0::2]) * h[1::2]))
            for s, gs in enumerate(g[K:]):
                h = S13[s] @ x[t]; y[t] += gs * (S2[s] @ (silu(h[0::2]) * h[1::2]))
        return y

    def block(self, p, x, local, dense, st, pos0):
        eps = self.c["rms_norm_eps"]
        a = self.attn(p, rms(x, self.w(p + "attn_norm.weight"), eps), local, st, pos0)
        x = x + self.sconv(a, self.w(p + "attn_sconv.weight"), st, "attn_conv")
        n = rms(x, self.w(p + "mlp_norm.weight"), eps)
        m = self.dense(p + "mlp.", n) if dense else self.moe(p + "mlp.", n)
        return x + self.sconv(m, self.w(p + "mlp_sconv.weight"), st, "mlp_conv")

    def embed(self, ids):
        return rms(self.w("model.llm.embed.weight")[ids], self.w("model.llm.embed_norm.weight"), self.c["rms_norm_eps"])

    def head(self, x):
        U = self.c.get("unpadded_vocab_size") or self.c["vocab_size"]
        return (x / self.c["logits_mup_width_multiplier"]) @ self.w("model.llm.unembed.weight")[:U].T

    def forward(self, ids, state=None, hidden=False):
        c = self.c; st = state if state is not None else self.new_state(); loc = set(c["local_layer_ids"])
        x = self.embed(ids)
        for i in range(c["num_hidden_layers"]):
            x = self.block(f"model.llm.layers.{i}.", x, i in loc, i < c["dense_mlp_idx"], st["layers"][i], st["pos"])
        st["pos"] += len(ids)
        h = rms(x, self.w("model.llm.norm.weight"), c["rms_norm_eps"])
        return (self.head(h), h) if hidden else self.head(h)


    def mtp(self, ids, hid, mode="normed"):
        """teacher-forced depths: depth i row r consumes the depth i-1 state of row r and token r+i+1 -> predicts token r+i+2"""
        cfg = json.load(open(self.dir + "/config.json"))["mtp_config"]; eps = self.c["rms_norm_eps"]; outs = []
        emb = self.embed(ids) if mode == "normed" else self.w("model.llm.embed.weight")[ids]
        h = hid
        for i in range(cfg["num_nextn_predict_layers"]):
            p = f"model.mtp.layers.{i}."; n = len(ids) - 1 - i
            z = np.concatenate([rms(h[:n], self.w(p + "hidden_norm.weight"), eps), rms(emb[i + 1:], self.w(p + "embed_norm.weight"), eps)], -1)
            h = self.block(p + "transformer_block.", z @ self.w(p + "input_proj.weight").T, i in set(cfg["local_layer_ids"]), True, {}, 0)
            if cfg["chain_hidden_post_norm"]: h = rms(h, self.w("model.mtp.chain_norm.weight"), eps)
            outs.append(self.head(h))
        return outs


def cmp(a, b): return float(np.abs(a - b).max() / np.abs(b).max()), float(np.linalg.norm(a - b) / np.linalg.norm(b))


def main(d):
    m = Inkling(d); ref = json.load(open(d + "/ref.json")); R = ST(d + "/ref.safetensors")("logits")
    ids = np.array(ref["full_ids"]); P = len(ref["prompt_ids"])
    full = m.forward(ids)
    print(d, "full forward: max-rel %.3e  l2-rel %.3e" % cmp(full, R), "argmax equal:", (full.argmax(-1) == np.array(ref["argmax"])).all())
    st = m.new_state(); a = [m.forward(ids[:P - 5], st)]             # prefill in two chunks, then one by one
    a.append(m.forward(ids[P - 5:P], st)); gen = []
    nxt = int(a[-1][-1].argmax())
    for _ in ref["greedy_ids"]:
        gen.append(nxt); a.append(m.forward(np.array([nxt]), st)); nxt = int(a[-1][-1].argmax())
    inc = np.concatenate(a)
    print("   incremental vs own full: max-rel %.3e" % cmp(inc, full)[0], " vs ref: %.3e" % cmp(inc, R)[0], "greedy equal:", gen == ref["greedy_ids"])
    rs = ST(d + "/ref.safetensors")
    if "mtp_logits_normed_0" in rs:
        _, hid = m.forward(ids, hidden=True)
        for mode in ("normed", "raw"):
            print("   MTP", mode, ["%.3e" % cmp(o, rs(f"mtp_logits_{mode}_{i}"))[0] for i, o in enumerate(m.mtp(ids, hid, mode))])
    sz = {i: {k: list(v.shape) for k, v in s.items()} for i, s in enumerate(st["layers"]) if i in (0, 5)}
    print("   state shapes:", sz)


if __name__ == "__main__":
    for d in sys.argv[1:]: main(d.rstrip("/"))
