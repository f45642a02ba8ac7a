#!/usr/bin/env python3
"""Independent numpy float64 forward for Qwen3.8-Flash-Next (qwen4_exp), written from
a description of the model.  Usage: np_qwen38.py FOLDER [FOLDER ...]"""
import sys, json, math
from pathlib import Path
import numpy as np
from np_common import *
from np_qwen36 import Qwen36

M64 = (1 << 64) - 1


def splitmix64(x):
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


def is_prime(n):
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def ple_hash_params(vocab, ngram, heads_per, base, seed, ple_index):
    """-> multipliers[ngram], table sizes[heads], offsets[heads]"""
    half = max(1, ((1 << 63) - 1) // vocab // 2)
    s0 = seed + 10007 * ple_index
    mult = [2 * (splitmix64((s0 + 0x9E3779B97F4A7C15 * (i + 1)) & M64) % half) + 1 for i in range(ngram)]
    heads = (ngram - 1) * heads_per
    primes, p = [], base - 1
    while len(primes) < (ple_index + 1) * heads:
        p += 1
        if is_prime(p):
            primes.append(p)
    sizes = primes[ple_index * heads:]
    off = [sum(sizes[:i]) for i in range(heads)]
    return mult, sizes, off


def ple_rows(hist, tok, eos, mult, sizes, off, heads_per):
    """hist = the last (ngram-1) token ids, oldest first; returns the table rows of `tok`.
    Walking back from tok, everything at or before the nearest EOS in `hist` reads as EOS."""
    n = len(mult)
    t = [tok]
    cut = False
    for j in range(1, n):
        cut = cut or hist[-j] == eos
        t.append(eos if cut else hist[-j])
    rows = []
    for order in range(2, n + 1):
        x = 0
        for j in range(order):
            x ^= t[j] * mult[j]
        for h in range((order - 2) * heads_per, (order - 1) * heads_per):
            rows.append(x % sizes[h] + off[h])
    return rows


class Qwen38(Qwen36):
    """Reuses the GDN / MoE / expert arithmetic of np_qwen36 (same formulas), overrides the rest."""

    def __init__(self, folder):
        self.cfg, self.c, self.w = load_checkpoint(folder)
        c, w = self.c, self.w
        self.H, self.L, self.V, self.n = c["hidden_size"], c["num_hidden_layers"], c["vocab_size"], c["hc_count"]
        self.nh, self.nkv, self.hd, self.eps = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["rms_norm_eps"]
        rp = c["rope_parameters"]
        self.theta, self.rd = rp["rope_theta"], int(self.hd * rp.get("partial_rotary_factor", 1.0))
        self.hk, self.hv = c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.dk, self.dv, self.K = c["linear_key_head_dim"], c["linear_value_head_dim"], c["linear_conv_kernel_dim"]
        self.types, self.next = ["linear_attention" if t == "linear_attention" else "qsa" for t in c["layer_types"]], False
        self.E, self.topk = c["num_experts"], c["num_experts_per_tok"]
        self.gate_act = {"sigmoid": sigmoid, "silu": silu}[c.get("output_gate_type") or c["hidden_act"]]
        self.nq, self.di, self.R, self.budget = c["indexer_n_heads"], c["indexer_head_dim"], c["indexer_compress_ratio"], c["indexer_budget"]
        self.head = w["model.embed_tokens.weight"] if c["tie_word_embeddings"] else w["lm_head.weight"]
        self.route_margin = self.qsa_margin = np.inf
        self.eos = c["eos_token_id"][0] if isinstance(c["eos_token_id"], list) else c["eos_token_id"]
        self.ple = {}
        for k, lid in enumerate(sorted(set(c.get("ple_layer_ids") or []))):
            p = f"model.layers.{lid - 1}.ple."
            e = p + "ple_embedding."
            mult, sizes, off = ple_hash_params(self.V, c["ngram_size"], c["heads_per_ngram"], c["ngram_vocab_size_base"], c.get("seed", 1234), k)
            # the checkpoint carries the same three vectors; both must agree
            assert mult == w[e + "layer_multipliers"].tolist() and sizes == w[e + "ngram_heads_vocab_sizes"].tolist() and off == w[e + "ngram_heads_offsets"].tolist()
            pieces = [w[f"{e}ngram_embedding.shard_{i}.weight"] for i in range(c["split_ngram_parts"])]
            tab = np.concatenate([x for x in pieces if x.size])
            d = c["make_ngram_vocab_size_divisible_by"]
            assert tab.shape == (-(-sum(sizes) // d) * d, c["ple_embed_dim"] // len(sizes))
            tab = tab * w.get(e + "ngram_embedding.weight_scale", np.ones(1))[0]
            self.ple[lid - 1] = (tab, mult, sizes, off)

    # ---------------------------------------------------------------- state
    def new_state(self):
        st = []
        for i, t in enumerate(self.types):
            if t == "linear_attention":
                C = 2 * self.hk * self.dk + self.hv * self.dv
                s = {"conv": np.zeros((self.K - 1, C)), "S": np.zeros((self.hv, self.dk, self.dv))}
                if i in self.ple:
                    s["ple_conv"] = np.zeros(((self.c["ple_conv_kernel_size"] - 1) * self.c["ngram_size"], self.n * self.H))
            else:
                s = self.attn_state()
            st.append(s)
        return {"pos": 0, "hist": [self.eos] * (self.c["ngram_size"] - 1), "layers": st}

    def attn_state(self):
        return {"k": np.zeros((0, self.nkv, self.hd)), "v": np.zeros((0, self.nkv, self.hd)),
                "pool": np.zeros((0, self.di)), "pend": np.zeros((0, self.di)), "pos0": None}

    # ---------------------------------------------------------------- gated residual (4 streams)
    def gnorm(self, x, w):
        """x [T, n*H]: RMS per stream of H, weight over n*H, multiplier 1+w"""
        T = x.shape[0]
        return (rms(x.reshape(T, self.n, self.H), 1.0, self.eps)).reshape(T, -1) * (1 + w)

    def read(self, p, X):
        """-> mixed input [T,H], injection weights [T,n] (None for the final mixer)"""
        w, T = self.w, X.shape[0]
        N = self.gnorm(X, w[p + "hc_norm.weight"])
        m = silu(N @ w[p + "input_mix_weight_down.weight"].T / self.n)
        m = sigmoid(m @ w[p + "input_mix_weight_up.weight"].T)
        mixed = (m * N).reshape(T, self.n, self.H).mean(1)
        inj = None
        if p + "block_inject_weight.weight" in w:
            inj = 2 * sigmoid(N @ w[p + "block_inject_weight.weight"].T / self.n)
        return mixed, inj

    @staticmethod
    def write(X, y, inj):
        T = X.shape[0]
        return X + (inj[:, :, None] * y[:, None, :]).reshape(T, -1)

    # ---------------------------------------------------------------- PLE
    def ple_block(self, i, X, ids, hist, st):
        w, c, p, T = self.w, self.c, f"model.layers.{i}.ple.", X.shape[0]
        tab, mult, sizes, off = self.ple[i]
        h = list(hist)
        rows = []
        for t in ids:
            rows.append(ple_rows(h, int(t), self.eos, mult, sizes, off, c["heads_per_ngram"]))
            h = (h + [int(t)])[-(c["ngram_size"] - 1):]
        rows = np.array(rows)
        e = tab[rows].reshape(T, -1)                                           # heads concatenated in head order
        key = self.gnorm(e @ w[p + "key_proj.weight"].T, w[p + "norm_key.weight"]).reshape(T, self.n, self.H)
        qry = self.gnorm(X, w[p + "norm_query.weight"]).reshape(T, self.n, self.H)
        val = e @ w[p + "value_proj.weight"].T
        g = (key * qry).sum(-1) / math.sqrt(self.H)
        g = np.sign(g) * np.sqrt(np.maximum(np.abs(g), 1e-6))
        gv = (sigmoid(g)[:, :, None] * val[:, None, :]).reshape(T, -1)         # [T, n*H]
        nv = self.gnorm(gv, w[p + "norm_conv.weight"])
        dil, K = c["ngram_size"], c["ple_conv_kernel_size"]
        buf = np.concatenate([st["ple_conv"], nv])
        if len(st["ple_conv"]):
            st["ple_conv"] = buf[-len(st["ple_conv"]):].copy()
        cw = w[p + "conv1d.weight"][:, 0, :]
        y = silu(sum(buf[j * dil:j * dil + T] * cw[:, j] for j in range(K)))    # tap K-1 = now, tap j = (K-1-j)*dil back
        return gv + y, rows

    # ---------------------------------------------------------------- QSA attention
    def attention_qsa(self, p, x, st, pos0, sel_out=None):
        w, T, R = self.w, x.shape[0], self.R
        qg = (x @ w[p + "q_proj.weight"].T).reshape(T, self.nh, 2 * self.hd)
        q, gate = qg[..., :self.hd], qg[..., self.hd:].reshape(T, -1)
        k = (x @ w[p + "k_proj.weight"].T).reshape(T, self.nkv, self.hd)
        v = (x @ w[p + "v_proj.weight"].T).reshape(T, self.nkv, self.hd)
        cs, sn = rope_cs(np.arange(pos0, pos0 + T), self.rd, self.theta)
        q = rope_apply(rms(q, 1 + w[p + "q_norm.weight"], self.eps), cs, sn)
        k = rope_apply(rms(k, 1 + w[p + "k_norm.weight"], self.eps), cs, sn)
        n0 = st["k"].shape[0]                                                   # tokens already held
        base = pos0 - n0                                                        # rope position of kv slot 0
        st["k"], st["v"] = np.concatenate([st["k"], k]), np.concatenate([st["v"], v])
        qk = x @ w[p + "indexer.index_qk_proj.weight"].T
        iq = rms(qk[:, :self.nq * self.di].reshape(T, self.nq, self.di), 1 + w[p + "indexer.q_layernorm.weight"], self.eps)
        iq = rope_apply(iq, cs, sn)
        ik = qk[:, self.nq * self.di:]                                          # raw: no norm, no rope yet
        out = np.empty((T, self.nh, self.hd))
        for t in range(T):
            st["pend"] = np.concatenate([st["pend"], ik[t:t + 1]])
            if len(st["pend"]) == R:                                            # a block of R keys is complete
                b = len(st["pool"])
                pk = rms(st["pend"].mean(0, keepdims=True), 1 + w[p + "indexer.k_layernorm.weight"], self.eps)
                c1, s1 = rope_cs([base + b * R], self.rd, self.theta)           # position of the block's FIRST token
                st["pool"] = np.concatenate([st["pool"], rope_apply(pk[:, None, :], c1, s1)[:, 0]])
                st["pend"] = st["pend"][:0]
            N, nb, kk = n0 + t + 1, len(st["pool"]), self.budget // R
            if nb > kk:
                sc = np.maximum(iq[t] @ st["pool"].T, 0).sum(0) / math.sqrt(self.di)
                o = np.argsort(-sc, kind="stable")                              # ties: lower block index first
                self.qsa_margin = min(self.qsa_margin, (sc[o[kk - 1]] - sc[o[kk]]) / max(sc[o[0]], 1e-30))
                blocks = np.sort(o[:kk])
            else:
                blocks = np.arange(nb)
            idx = np.concatenate([(blocks[:, None] * R + np.arange(R)).ravel(), np.arange(nb * R, N)]).astype(int)
            if sel_out is not None:
                sel_out.append(idx)
            for h in range(self.nh):
                j = h // (self.nh // self.nkv)
                out[t, h] = softmax(st["k"][idx, j] @ q[t, h] * self.hd ** -0.5) @ st["v"][idx, j]
        return (out.reshape(T, -1) * sigmoid(gate)) @ w[p + "o_proj.weight"].T

    def gdn(self, p, x, st, chunk=False):
        w, T = self.w, x.shape[0]
        qkv, z, b, a = self.gdn_inputs(p, x)
        buf = np.concatenate([st["conv"], qkv])
        st["conv"] = buf[-(self.K - 1):].copy()
        cw = w[p + "conv1d.weight"][:, 0, :]
        y = silu(sum(buf[j:j + T] * cw[:, j] for j in range(self.K)))
        kd, r = self.hk * self.dk, self.hv // self.hk
        q = np.repeat(l2norm(y[:, :kd].reshape(T, self.hk, self.dk)) * self.dk ** -0.5, r, 1)
        k = np.repeat(l2norm(y[:, kd:2 * kd].reshape(T, self.hk, self.dk)), r, 1)
        v = y[:, 2 * kd:].reshape(T, self.hv, self.dv)
        g = -np.exp(w[p + "A_log"]) * softplus(a + w[p + "dt_bias"])
        o, st["S"] = (self.delta_chunk if chunk else self.delta_recurrent)(q, k, v, g, sigmoid(b), st["S"].copy())
        o = rms(o, w[p + "norm.weight"], self.eps) * self.gate_act(z)
        return o.reshape(T, -1) @ w[p + "out_proj.weight"].T

    def layer(self, p, kind, X, st, pos0, chunk=False, sel=None):
        x, inj = self.read(p + "attn_hyper_connection.", X)
        y = self.gdn(p + "linear_attn.", x, st, chunk) if kind == "linear_attention" else self.attention_qsa(p + "self_attn.", x, st, pos0, sel)
        X = self.write(X, y, inj)
        x, inj = self.read(p + "mlp_hyper_connection.", X)
        return self.write(X, self.moe(p + "mlp.", x), inj)

    def forward(self, ids, state, chunk=False, trace=None):
        x = self.w["model.embed_tokens.weight"][np.asarray(ids)]
        X = np.tile(x, (1, self.n))
        for i, kind in enumerate(self.types):
            st = state["layers"][i]
            if i in self.ple:
                d, rows = self.ple_block(i, X, ids, state["hist"], st)
                X = X + d
                if trace is not None:
                    trace[f"ple_rows.{i}"], trace[f"ple_out.{i}"] = rows, d
            sel = [] if trace is not None and kind == "qsa" else None
            X = self.layer(f"model.layers.{i}.", kind, X, st, state["pos"], chunk, sel)
            if trace is not None:
                trace[f"streams.{i}"] = X
                if sel is not None:
                    trace[f"sel.{i}"] = sel
        state["pos"] += len(ids)
        n1 = self.c["ngram_size"] - 1
        state["hist"] = (list(state["hist"]) + [int(t) for t in ids])[-n1:]
        x, _ = self.read("model.hyper_connection_mixer.", X)
        return x @ self.head.T, X

    def mtp(self, ids, X):
        w, S = self.w, len(ids) - 1
        h = rms(X[:-1], 1 + w["mtp.pre_fc_norm_hidden.weight"], self.eps)          # ONE rms over all n*H
        h = h.reshape(S, self.n, self.H) @ w["mtp.fc_hidden.weight"].T
        e = rms(w["model.embed_tokens.weight"][np.asarray(ids[1:])], 1 + w["mtp.pre_fc_norm_embedding.weight"], self.eps) @ w["mtp.fc_embedding.weight"].T
        x = (h + e[:, None, :]).reshape(S, -1)
        x = self.layer("mtp.layers.0.", "qsa", x, self.attn_state(), 1)
        y, _ = self.read("mtp.hyper_connection_mixer.", x)
        return y @ self.head.T, x


def check(folder):
    folder = Path(folder)
    ref = json.loads((folder / "ref.json").read_text())
    r, tr = read_safetensors(folder / "ref.safetensors"), load_trace(folder / "trace.safetensors")
    r64 = read_safetensors(folder / "ref64.safetensors")["logits"]
    m = Qwen38(folder)
    ids, P = ref["teacher_forced_ids"], len(ref["prompt_ids"])
    t = {}
    full, X = m.forward(ids, m.new_state(), trace=t)
    res = {"full_vs_ref": relerr(full, r["logits"]), "argmax_equal": bool((full.argmax(-1) == np.array(ref["argmax"])).all()),
           "full_vs_ref64": relerr(full, r64), "streams_max": max(relerr(t[f"streams.{i}"], tr[f"streams.{i}"]) for i in range(m.L))}
    res["ple_rows_equal"] = all(bool((t[f"ple_rows.{i}"] == tr[f"ple_rows.{i}"]).all()) for i in m.ple)
    res["ple_out_max"] = max(relerr(t[f"ple_out.{i}"], tr[f"ple_out.{i}"]) for i in m.ple)
    ok, narrowed = True, 0
    for i, k in enumerate(m.types):
        if k == "qsa":
            mk = np.zeros((len(ids), len(ids)), bool)
            for a, s in enumerate(t[f"sel.{i}"]):
                mk[a, s] = True
                narrowed += len(s) < a + 1
            ok &= bool((mk == tr[f"qsa_mask.{i}"].astype(bool)).all())
    res["qsa_selection_equal"], res["qsa_rows_actually_sparse"] = ok, int(narrowed)
    ch, _ = m.forward(ids, m.new_state(), chunk=True)
    res["chunk_vs_recurrent"] = relerr(ch, full)
    st, rows, at = m.new_state(), [], 0
    for n in (1, 1, 3, 17, P - 22):
        rows.append(m.forward(ids[at:at + n], st)[0]); at += n
    serr = 0.0
    for i, kind in enumerate(m.types):
        L, pre = st["layers"][i], f"prompt_state.{i}."
        if kind == "linear_attention":
            serr = max(serr, relerr(L["conv"].T, tr[pre + "conv"]), relerr(L["S"], tr[pre + "recurrent"]))
            if i in m.ple:
                serr = max(serr, relerr(L["ple_conv"].T, tr[pre + "ple_conv"]))
                assert list(st["hist"]) == tr[pre + "ngram_context"].tolist()
        else:
            serr = max(serr, relerr(L["k"].transpose(1, 0, 2), tr[pre + "k"]), relerr(L["v"].transpose(1, 0, 2), tr[pre + "v"]))
            raw = tr[pre + "indexer_raw_k"]
            if len(L["pend"]):
                serr = max(serr, relerr(L["pend"], raw[-len(L["pend"]):]))
    res["prompt_state_vs_ref"] = serr
    gen, nxt = [], int(rows[-1][-1].argmax())
    for _ in range(len(ref["generated_ids"])):
        gen.append(nxt)
        if len(gen) == len(ref["generated_ids"]):
            break
        lg, _ = m.forward([nxt], st)
        rows.append(lg)
        nxt = int(lg[-1].argmax())
    res["incremental_vs_full"] = relerr(np.concatenate(rows), full)
    res["greedy_tokens_equal"] = gen == ref["generated_ids"]
    res["min_router_margin_rel"], res["min_qsa_gap_rel"] = float(m.route_margin), float(m.qsa_margin)
    if "mtp_logits" in r:
        ml, ms = m.mtp(ids, X)
        res["mtp_vs_ref"], res["mtp_argmax_equal"] = relerr(ml, r["mtp_logits"]), ml.argmax(-1).tolist() == ref["mtp_argmax"]
    print(folder.name, {k: (f"{v:.2e}" if isinstance(v, float) else v) for k, v in res.items()})
    return res


def load_trace(path):
    import struct
    raw = Path(path).read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    u8 = {k: v for k, v in head.items() if k != "__metadata__" and v["dtype"] == "U8"}
    rest = {k: v for k, v in head.items() if k not in u8}
    out = {k: np.frombuffer(raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]], np.uint8).reshape(v["shape"]) for k, v in u8.items()}
    kinds = {"F32": "<f4", "I64": "<i8"}
    for k, v in rest.items():
        if k != "__metadata__":
            a = np.frombuffer(raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]], kinds[v["dtype"]]).reshape(v["shape"])
            out[k] = a.astype(F) if v["dtype"] == "F32" else a
    return out


if __name__ == "__main__":
    allr = {}
    for f in sys.argv[1:]:
        allr[Path(f).name] = check(f)
    Path("checkpoints/np_qwen38_results.json").write_text(json.dumps(allr, indent=1))
