#!/usr/bin/env python3
"""Independent numpy float64 forward for the qwen3_5 / qwen3_5_moe / qwen3_next line, written from
a description of the model.  Usage: np_qwen36.py FOLDER [FOLDER ...]
For each folder it checks: full forward == ref logits; token-by-token decode from the state list ==
full forward; chunked GDN == recurrent GDN; end-of-prompt states == reference cache; MTP logits."""
import sys, json
from pathlib import Path
import numpy as np
from np_common import *


class Qwen36:
    def __init__(self, folder):
        self.cfg, self.c, self.w = load_checkpoint(folder)
        c = self.c
        self.H, self.L, self.V = c["hidden_size"], c["num_hidden_layers"], c["vocab_size"]
        self.nh, self.nkv, self.hd = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.eps = c["rms_norm_eps"]
        rp = c["rope_parameters"]
        self.theta, self.rd = rp["rope_theta"], int(self.hd * rp.get("partial_rotary_factor", 0.25))
        self.hk, self.hv = c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.dk, self.dv, self.K = c["linear_key_head_dim"], c["linear_value_head_dim"], c["linear_conv_kernel_dim"]
        self.types = c["layer_types"]
        self.next = self.cfg.get("model_type") == "qwen3_next"
        self.E, self.topk = c.get("num_experts", 0) or 0, c.get("num_experts_per_tok", 0)
        self.head = self.w["model.embed_tokens.weight"] if c["tie_word_embeddings"] else self.w["lm_head.weight"]
        self.route_margin = np.inf

    # ---------------------------------------------------------------- state
    def new_state(self):
        st = []
        for t in self.types:
            if t == "linear_attention":
                C = 2 * self.hk * self.dk + self.hv * self.dv
                st.append({"conv": np.zeros((self.K - 1, C)), "S": np.zeros((self.hv, self.dk, self.dv))})
            else:
                st.append({"k": np.zeros((0, self.nkv, self.hd)), "v": np.zeros((0, self.nkv, self.hd))})
        return {"pos": 0, "layers": st}

    # ---------------------------------------------------------------- mixers
    def attention(self, p, x, st, pos0):
        w, T = self.w, x.shape[0]
        qg = (x @ w[p + "q_proj.weight"].T).reshape(T, self.nh, 2 * self.hd)
        q, gate = qg[..., :self.hd], qg[..., self.hd:].reshape(T, -1)
        k = (x @ w[p + "k_proj.weight"].T).reshape(T, self.nkv, self.hd)
        v = (x @ w[p + "v_proj.weight"].T).reshape(T, self.nkv, self.hd)
        q = rms(q, 1 + w[p + "q_norm.weight"], self.eps)
        k = rms(k, 1 + w[p + "k_norm.weight"], self.eps)
        cs, sn = rope_cs(np.arange(pos0, pos0 + T), self.rd, self.theta)
        q, k = rope_apply(q, cs, sn), rope_apply(k, cs, sn)
        st["k"], st["v"] = np.concatenate([st["k"], k]), np.concatenate([st["v"], v])
        N = st["k"].shape[0]
        past = N - T
        mask = np.arange(N)[None] <= (past + np.arange(T))[:, None]
        out = np.empty((T, self.nh, self.hd))
        for h in range(self.nh):
            j = h // (self.nh // self.nkv)
            s = q[:, h] @ st["k"][:, j].T * self.hd ** -0.5
            out[:, h] = softmax(np.where(mask, s, -np.inf)) @ st["v"][:, j]
        return (out.reshape(T, -1) * sigmoid(gate)) @ w[p + "o_proj.weight"].T

    def gdn_inputs(self, p, x):
        """-> qkv [T, C] (channels q|k|v, head-major), z [T,hv,dv], b,a [T,hv]"""
        w, T = self.w, x.shape[0]
        if not self.next:
            return (x @ w[p + "in_proj_qkv.weight"].T, (x @ w[p + "in_proj_z.weight"].T).reshape(T, self.hv, self.dv),
                    x @ w[p + "in_proj_b.weight"].T, x @ w[p + "in_proj_a.weight"].T)
        r = self.hv // self.hk   # qwen3_next: rows grouped per KEY head: [q dk | k dk | v r*dv | z r*dv], [b r | a r]
        m = (x @ w[p + "in_proj_qkvz.weight"].T).reshape(T, self.hk, 2 * self.dk + 2 * r * self.dv)
        q, k, v, z = np.split(m, [self.dk, 2 * self.dk, 2 * self.dk + r * self.dv], axis=2)
        ba = (x @ w[p + "in_proj_ba.weight"].T).reshape(T, self.hk, 2 * r)
        qkv = np.concatenate([q.reshape(T, -1), k.reshape(T, -1), v.reshape(T, -1)], 1)
        return qkv, z.reshape(T, self.hv, self.dv), ba[..., :r].reshape(T, self.hv), ba[..., r:].reshape(T, self.hv)

    @staticmethod
    def delta_recurrent(q, k, v, g, beta, S):
        """q,k [T,hv,dk] (q already scaled), v [T,hv,dv], g,beta [T,hv], S [hv,dk,dv]"""
        T = q.shape[0]
        o = np.empty_like(v)
        for t in range(T):
            S = S * np.exp(g[t])[:, None, None]
            d = (v[t] - np.einsum("hkv,hk->hv", S, k[t])) * beta[t][:, None]
            S = S + k[t][:, :, None] * d[:, None, :]
            o[t] = np.einsum("hkv,hk->hv", S, q[t])
        return o, S

    @staticmethod
    def delta_chunk(q, k, v, g, beta, S, C=64):
        """Chunk form, same result as delta_recurrent (spec section GDN-chunk)."""
        T, Hh = q.shape[:2]
        o = np.empty_like(v)
        for a in range(0, T, C):
            z = slice(a, min(a + C, T))
            n = z.stop - a
            G = np.cumsum(g[z], 0)                                   # [n,h]
            for h in range(Hh):
                D = np.exp(np.tril(G[:, None, h] - G[None, :, h]))    # i>=j ; upper part is killed by tril below
                Kh, Qh, Vh, bh, Gh = k[z, h], q[z, h], v[z, h], beta[z, h], G[:, h]
                A = np.tril((Kh * bh[:, None]) @ Kh.T * D, -1)
                rhs = bh[:, None] * (Vh - np.exp(Gh)[:, None] * (Kh @ S[h]))
                U = np.linalg.solve(np.eye(n) + A, rhs)               # unit lower triangular
                P = np.tril(Qh @ Kh.T * D)
                o[z, h] = np.exp(Gh)[:, None] * (Qh @ S[h]) + P @ U
                S[h] = np.exp(Gh[-1]) * S[h] + (Kh * np.exp(Gh[-1] - Gh)[:, None]).T @ U
        return o, S

    def gdn(self, p, x, st, chunk=False):
        w, T = self.w, x.shape[0]
        qkv, z, b, a = self.gdn_inputs(p, x)
        buf = np.concatenate([st["conv"], qkv])                        # [K-1+T, C]
        st["conv"] = buf[-(self.K - 1):].copy()
        cw = w[p + "conv1d.weight"][:, 0, :]                           # [C, K]; tap K-1 hits the current token
        y = silu(sum(buf[j:j + T] * cw[:, j] for j in range(self.K)))
        kd = self.hk * self.dk
        q = l2norm(y[:, :kd].reshape(T, self.hk, self.dk)) * self.dk ** -0.5
        k = l2norm(y[:, kd:2 * kd].reshape(T, self.hk, self.dk))
        v = y[:, 2 * kd:].reshape(T, self.hv, self.dv)
        r = self.hv // self.hk
        q, k = np.repeat(q, r, 1), np.repeat(k, r, 1)                  # value head h uses key head h // r
        beta = sigmoid(b)
        g = -np.exp(w[p + "A_log"]) * softplus(a + w[p + "dt_bias"])
        f = self.delta_chunk if chunk else self.delta_recurrent
        o, st["S"] = f(q, k, v, g, beta, st["S"].copy())
        o = rms(o, w[p + "norm.weight"], self.eps) * silu(z)           # plain weight (no +1), norm BEFORE gate
        return o.reshape(T, -1) @ w[p + "out_proj.weight"].T

    # ---------------------------------------------------------------- ffn
    def mlp(self, p, x):
        w = self.w
        return (silu(x @ w[p + "gate_proj.weight"].T) * (x @ w[p + "up_proj.weight"].T)) @ w[p + "down_proj.weight"].T

    def expert(self, p, e, x):
        w = self.w
        if p + "experts.gate_up_proj" in w:
            gu, I = w[p + "experts.gate_up_proj"][e], w[p + "experts.down_proj"].shape[2]
            return (silu(x @ gu[:I].T) * (x @ gu[I:].T)) @ w[p + "experts.down_proj"][e].T
        return self.mlp(f"{p}experts.{e}.", x)

    def moe(self, p, x):
        w = self.w
        pr = softmax(x @ w[p + "gate.weight"].T)
        out = sigmoid(x @ w[p + "shared_expert_gate.weight"].T) * self.mlp(p + "shared_expert.", x)
        for t in range(x.shape[0]):
            order = np.argsort(-pr[t], kind="stable")
            sel = order[:self.topk]
            self.route_margin = min(self.route_margin, pr[t, sel[-1]] / pr[t, order[self.topk]] - 1)
            ws = pr[t, sel]
            if self.c.get("norm_topk_prob", True):
                ws = ws / ws.sum()
            for e, q in zip(sel, ws):
                out[t] += q * self.expert(p, e, x[t])
        return out

    def ffn(self, p, x):
        return self.moe(p, x) if (p + "gate.weight") in self.w else self.mlp(p, x)

    # ---------------------------------------------------------------- model
    def layer(self, p, kind, x, st, pos0, chunk=False):
        w = self.w
        h = rms(x, 1 + w[p + "input_layernorm.weight"], self.eps)
        x = x + (self.gdn(p + "linear_attn.", h, st, chunk) if kind == "linear_attention" else self.attention(p + "self_attn.", h, st, pos0))
        h = rms(x, 1 + w[p + "post_attention_layernorm.weight"], self.eps)
        return x + self.ffn(p + "mlp.", h)

    def forward(self, ids, state, chunk=False, trace=None):
        x = self.w["model.embed_tokens.weight"][np.asarray(ids)]
        if trace is not None:
            trace.append(x)
        for i, kind in enumerate(self.types):
            x = self.layer(f"model.layers.{i}.", kind, x, state["layers"][i], state["pos"], chunk)
            if trace is not None:
                trace.append(x)
        state["pos"] += len(ids)
        hn = rms(x, 1 + self.w["model.norm.weight"], self.eps)
        if trace is not None:
            trace[-1] = hn
        return hn @ self.head.T, hn

    def mtp(self, ids, hn):
        """ids[0..S-1], hn [S,H] (after final norm). Row p -> logits for ids[p+2]."""
        w = self.w
        e = rms(w["model.embed_tokens.weight"][np.asarray(ids[1:])], 1 + w["mtp.pre_fc_norm_embedding.weight"], self.eps)
        h = rms(hn[:-1], 1 + w["mtp.pre_fc_norm_hidden.weight"], self.eps)
        x = np.concatenate([e, h], 1) @ w["mtp.fc.weight"].T
        st = {"k": np.zeros((0, self.nkv, self.hd)), "v": np.zeros((0, self.nkv, self.hd))}
        x = self.layer("mtp.layers.0.", "full_attention", x, st, 1)
        return rms(x, 1 + w["mtp.norm.weight"], self.eps) @ self.head.T


def check(folder):
    folder = Path(folder)
    ref = json.loads((folder / "ref.json").read_text())
    r, tr = read_safetensors(folder / "ref.safetensors"), read_safetensors(folder / "trace.safetensors")
    m = Qwen36(folder)
    ids, P = ref["teacher_forced_ids"], len(ref["prompt_ids"])
    used0 = set(m.w)
    tl = []
    full, hn = m.forward(ids, m.new_state(), trace=tl)
    res = {"full_vs_ref": relerr(full, r["logits"]), "argmax_equal": bool((full.argmax(-1) == np.array(ref["argmax"])).all())}
    r64 = read_safetensors(folder / "ref64.safetensors")["logits"]
    res["full_vs_ref64"] = relerr(full, r64)
    res["hidden_max"] = max(relerr(t, tr[f"hidden.{i}"]) for i, t in enumerate(tl))
    ch, _ = m.forward(ids, m.new_state(), chunk=True)
    res["chunk_vs_recurrent"] = relerr(ch, full)
    # decode from state: prompt in uneven pieces, then token by token
    st, rows, at = m.new_state(), [], 0
    for n in (1, 2, 7, P - 10):
        rows.append(m.forward(ids[at:at + n], st)[0]); at += n
    serr = 0.0
    for i, kind in enumerate(m.types):
        L = st["layers"][i]
        pre = f"prompt_state.{i}."
        if kind == "linear_attention":
            serr = max(serr, relerr(L["conv"].T, tr[pre + "conv"]), relerr(L["S"], tr[pre + "recurrent"]))
        else:
            serr = max(serr, relerr(L["k"].transpose(1, 0, 2), tr[pre + "k"]), relerr(L["v"].transpose(1, 0, 2), tr[pre + "v"]))
    res["prompt_state_vs_ref"] = serr
    gen = []
    nxt = int(rows[-1][-1].argmax())
    for _ in range(len(ref["generated_ids"])):
        gen.append(nxt)
        if len(gen) == len(ref["generated_ids"]):
            break
        lg, _ = m.forward([nxt], st)
        rows.append(lg)
        nxt = int(lg[-1].argmax())
    inc = np.concatenate(rows)
    res["incremental_vs_full"] = relerr(inc, full)
    res["greedy_tokens_equal"] = gen == ref["generated_ids"]
    if m.E:
        res["min_router_margin_rel"] = float(m.route_margin)
    if "mtp_logits" in r:
        ml = m.mtp(ids, hn)
        res["mtp_vs_ref"] = relerr(ml, r["mtp_logits"])
        res["mtp_argmax_equal"] = ml.argmax(-1).tolist() == ref["mtp_argmax"]
    print(folder.name, {k: (f"{v:.2e}" if isinstance(v, float) else v) for k, v in res.items()})
    return res


if __name__ == "__main__":
    allr = {}
    for f in sys.argv[1:]:
        allr[Path(f).name] = check(f)
    Path("checkpoints/np_qwen36_results.json").write_text(json.dumps(allr, indent=1))
