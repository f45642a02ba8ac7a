"""Random valid shapes of every family, in the form that the makers take.

A function a family: it gets a `Draw` and returns (maker's shape, prompt length it needs, summary).
Shapes stay inside what the published classes accept and reach beyond what any release has: other
ratios of heads, windows that no prompt length divides, top-k of one and of nearly all, lists of
layer kinds without a period.
"""
import random


class Draw:
    """Draws that read well."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def of(self, *choices):
        return self.rng.choice(choices)

    def between(self, low, high, step=1):
        return self.rng.randrange(low, high + 1, step)

    def flag(self, share=0.5):
        return self.rng.random() < share

    def real(self, low, high, digits=3):
        return round(self.rng.uniform(low, high), digits)

    def divisor(self, n):
        return self.of(*[d for d in range(1, n + 1) if n % d == 0])

    def some(self, n, at_least=0):
        """A subset of 0..n, ascending."""
        return sorted(self.rng.sample(range(n), self.between(at_least, n)))


def top_k(d, experts, most=6):
    return d.between(1, min(most, experts - 1))


def prompt_length(d, *reaches):
    """Longer than everything that cuts the past, by no round number."""
    return max(max(reaches, default=0), 20) + d.between(3, 30)


def olmoe(d):
    heads, head_dim = d.between(1, 8), d.between(4, 40, 2)
    experts = d.between(3, 24)
    cfg = dict(
        vocab_size=d.between(60, 400), hidden_size=heads * head_dim,
        intermediate_size=d.between(8, 70), num_hidden_layers=d.between(1, 6),
        num_attention_heads=heads, num_key_value_heads=d.divisor(heads), num_experts=experts,
        num_experts_per_tok=top_k(d, experts, 8), norm_topk_prob=d.flag(),
        clip_qkv=d.of(None, None, d.real(0.5, 3)), rope_theta=d.of(100.0, 500.0, 1e4, 1e6),
        rms_norm_eps=d.of(1e-6, 1e-5, 1e-3), tie_word_embeddings=d.flag(0.3))
    v = dict(store=d.of("f32", "bf16"), small=d.flag(0.3), shards=d.between(1, 4), cfg=cfg)
    return v, prompt_length(d), ("hidden_size", "num_hidden_layers", "num_key_value_heads",
                                 "num_experts", "num_experts_per_tok", "clip_qkv")


def glm(d):
    layers, heads = d.between(1, 8), d.between(1, 8)
    groups = d.of(1, 1, 2, 3, 4)
    experts = groups * d.between(2, 8) if groups > 1 else d.between(3, 24)
    kept = d.between(1, groups)
    rope = d.between(2, 16, 2)
    cfg = dict(
        vocab_size=d.between(60, 300), hidden_size=d.between(24, 160, 4),
        intermediate_size=d.between(16, 120), moe_intermediate_size=d.between(8, 56),
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
        n_shared_experts=d.between(1, 3), n_routed_experts=experts,
        routed_scaling_factor=d.of(1.0, d.real(0.5, 3)), kv_lora_rank=d.between(6, 48),
        q_lora_rank=d.between(8, 64), qk_rope_head_dim=rope, v_head_dim=d.between(4, 36),
        qk_nope_head_dim=d.between(4, 32), n_group=groups, topk_group=kept,
        num_experts_per_tok=d.between(1, min(6, experts // groups * kept - (groups == 1))),
        norm_topk_prob=d.flag(0.7), index_topk=d.between(3, 32),
        index_head_dim=rope + d.between(0, 24, 2), index_n_heads=d.between(7, 16),
        first_k_dense_replace=d.between(0, min(layers, 3)), rms_norm_eps=d.of(1e-6, 1e-5, 1e-4),
        max_position_embeddings=4096, rope_theta=d.of(500.0, 1e4, 8e6),
        index_topk_freq=d.between(1, 4), index_skip_topk_offset=d.between(1, 4),
        attention_bias=d.flag(0.3), tie_word_embeddings=d.flag(0.2))
    # The same schedules said in the older keys.
    unwritten = ([], ["indexer_types"], ["mlp_layer_types"], ["indexer_types", "mlp_layer_types"])
    v = dict(store=d.of("f32", "bf16", "fp8"), small=d.flag(0.3), shards=d.between(1, 4), cfg=cfg,
             unwritten=d.of(*unwritten))
    return v, prompt_length(d, cfg["index_topk"] + 8), (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "n_group", "n_routed_experts",
        "num_experts_per_tok", "index_topk", "attention_bias")


def deepseek_v4(d):
    layers, groups = d.between(1, 7), d.between(1, 4)
    rope = d.between(2, 16, 2)
    quant = d.flag(0.4)
    plain = d.of(2, 3, 8, 16, 24, 64)
    ratios = [d.of(0, 4, 4, plain, plain) for _ in range(layers)] + [0]
    experts = d.between(3, 16)
    cfg = dict(
        small=d.flag(0.3), vocab_size=d.between(60, 250),
        hidden_size=d.between(32, 192, 32) if quant else d.between(24, 120, 4),
        moe_intermediate_size=d.between(32, 96, 32) if quant else d.between(8, 60),
        num_hidden_layers=layers, num_hash_layers=d.between(0, min(layers, 3)),
        num_attention_heads=groups * d.between(1, 3), head_dim=rope + d.between(2, 48, 2),
        qk_rope_head_dim=rope, q_lora_rank=d.between(8, 96), o_groups=groups,
        o_lora_rank=d.between(4, 40), sliding_window=d.between(2, 32), compress_ratios=ratios,
        index_n_heads=d.between(7, 14), index_head_dim=rope + d.between(0, 24, 2),
        index_topk=d.between(2, 16), n_routed_experts=experts,
        num_experts_per_tok=top_k(d, experts), routed_scaling_factor=d.of(1.0, d.real(0.5, 3)),
        swiglu_limit=d.real(0.5, 10), hc_mult=d.between(2, 5), hc_sinkhorn_iters=d.between(1, 20),
        hc_eps=d.of(1e-6, 1e-4), rms_norm_eps=d.of(1e-6, 1e-5), rope_theta=d.of(1e3, 1e4),
        compress_rope_theta=d.of(4e4, 160000.0), rope_scaling=dict(
            type="yarn", factor=d.of(1, 4, 16), beta_fast=d.of(8, 32), beta_slow=d.of(1, 2),
            original_max_position_embeddings=d.of(64, 512, 4096)))
    v = dict(store="quant" if quant else d.of("f32", "bf16"), shards=d.between(1, 4), cfg=cfg)
    reach = prompt_length(d, cfg["sliding_window"] + 4, 2 * max(ratios) + 3,
                          4 * (cfg["index_topk"] + 3))
    return v, reach, ("hidden_size", "compress_ratios", "num_hash_layers", "sliding_window",
                      "index_topk", "hc_mult", "n_routed_experts", "num_experts_per_tok")


def inkling(d):
    layers = d.between(1, 8)
    nvfp4 = d.flag(0.4)
    heads, local = d.between(1, 8), d.between(1, 8)
    experts = d.between(3, 20)
    hidden = d.between(32, 144, 16) if nvfp4 else d.between(24, 144, 4)
    vocab = d.between(80, 400)
    width = d.between(16, 64, 16) if nvfp4 else d.between(8, 56)
    text = dict(
        model_max_length=4096, hidden_size=hidden, num_hidden_layers=layers, vocab_size=vocab,
        unpadded_vocab_size=vocab - d.of(0, 1, 13), num_attention_heads=heads,
        num_key_value_heads=d.divisor(heads), head_dim=d.between(4, 32), d_rel=d.between(2, 16),
        rel_extent=d.of(d.between(5, 40), 500), log_scaling_n_floor=d.of(None, d.between(10, 60)),
        log_scaling_alpha=d.real(0.05, 0.5), local_layer_ids=d.some(layers),
        dense_mlp_idx=d.between(0, min(layers, 3)), logits_mup_width_multiplier=d.real(1, 24, 1),
        swa_head_dim=d.between(4, 32), swa_num_attention_heads=local,
        swa_num_key_value_heads=d.divisor(local), sliding_window_size=d.between(2, 40),
        n_routed_experts=experts, num_experts_per_tok=top_k(d, experts),
        n_shared_experts=d.between(1, 3), dense_intermediate_size=d.between(16, 160),
        intermediate_size=width, route_scale=d.real(1, 8, 1), sconv_kernel_size=d.between(2, 6),
        rms_norm_eps=d.of(1e-6, 1e-5))
    # Transformers tells layers from heads by their numbers: there are no more heads than layers.
    drafts = d.between(1, min(3, layers))
    v = dict(nvfp4=nvfp4, shards=d.between(1, 4), tries=1, experts="eager", text=text,
             mtp=dict(num_nextn_predict_layers=drafts, local_layer_ids=d.some(drafts),
                      chain_hidden_post_norm=False))
    reach = prompt_length(d, text["sliding_window_size"] + 6, min(text["rel_extent"], 60) + 6,
                          (text["log_scaling_n_floor"] or 0) + 6)
    return v, reach, ("hidden_size", "num_hidden_layers", "local_layer_ids", "dense_mlp_idx",
                      "sliding_window_size", "rel_extent", "n_routed_experts",
                      "num_experts_per_tok", "n_shared_experts", "sconv_kernel_size")


def kimi_k3(d):
    layers, heads, experts = d.between(1, 10), d.between(1, 5), d.between(4, 20)
    mxfp4 = d.flag(0.6)
    delta = d.some(layers)
    text = dict(
        hidden_size=d.between(24, 128, 4), num_hidden_layers=layers,
        attn_res_block_size=d.between(1, 6), first_k_dense_replace=d.between(0, min(layers, 2)),
        intermediate_size=d.between(16, 200), num_attention_heads=heads, num_key_value_heads=heads,
        q_lora_rank=d.between(8, 56), kv_lora_rank=d.between(6, 40),
        qk_nope_head_dim=d.between(4, 28), qk_rope_head_dim=d.between(2, 16, 2),
        v_head_dim=d.between(4, 28), num_experts=experts,
        num_experts_per_token=d.between(2, min(6, experts - 1)),
        num_shared_experts=d.between(1, 3),
        moe_intermediate_size=d.between(32, 96, 32) if mxfp4 else d.between(8, 60),
        routed_expert_hidden_size=d.between(32, 96, 32) if mxfp4 else d.between(12, 90),
        routed_scaling_factor=d.of(1.0, d.real(0.5, 2)), vocab_size=d.between(80, 400),
        latent_moe_use_norm=d.flag(0.7), moe_renormalize=d.flag(0.8),
        mla_use_output_gate=d.flag(0.8), activation_situ_beta=d.real(1, 6),
        activation_situ_linear_beta=d.real(2, 25), rms_norm_eps=d.of(1e-6, 1e-5),
        linear_attn_config=dict(
            kda_layers=[i + 1 for i in delta],
            full_attn_layers=[i + 1 for i in range(layers) if i not in delta],
            num_heads=d.between(1, 6), head_dim=d.between(4, 28),
            short_conv_kernel_size=d.between(2, 6), gate_lower_bound=d.real(-7, -1),
            use_full_rank_gate=True))
    v = dict(mxfp4=mxfp4, prefix=d.of("language_model.", ""), shards=d.between(1, 4), text=text)
    return v, prompt_length(d), (
        "hidden_size", "num_hidden_layers", "attn_res_block_size", "first_k_dense_replace",
        "num_attention_heads", "num_experts", "num_experts_per_token", "latent_moe_use_norm",
        "mla_use_output_gate")


def qwen_text(d, fp8):
    """What the Qwen line shares."""
    kv, keys = d.between(1, 3), d.between(1, 4)
    head_dim = d.of(8, 16, 24, 32)
    share = d.of(0.25, 0.5, 1.0)
    pairs = int(head_dim * share) // 2
    first = d.between(0, pairs)
    second = d.between(0, pairs - first)
    layers, experts = d.between(1, 8), d.between(3, 16)
    kinds = [d.of("linear_attention", "linear_attention", "full_attention")
             for _ in range(layers)]
    kinds[d.between(0, layers - 1)] = "full_attention"  # transformers' cache wants one
    vocab = d.between(100, 330)
    # Transformers finds the sides of FP8 blocks by dividing.
    narrow = (lambda low, high: d.of(16, 32, 48, 64, 128)) if fp8 else d.between
    return dict(
        vocab_size=vocab, hidden_size=d.of(64, 96, 128) if fp8 else d.between(24, 120, 4),
        num_hidden_layers=layers, num_attention_heads=kv * d.of(1, 2, 3), num_key_value_heads=kv,
        head_dim=head_dim, linear_key_head_dim=d.of(8, 12, 16, 32),
        linear_value_head_dim=d.of(8, 16, 20, 32), linear_num_key_heads=keys,
        linear_num_value_heads=keys * d.between(1, 3), num_experts=experts,
        num_experts_per_tok=top_k(d, experts), moe_intermediate_size=narrow(8, 60),
        shared_expert_intermediate_size=narrow(8, 60), intermediate_size=narrow(16, 120),
        linear_conv_kernel_dim=d.between(2, 6), rms_norm_eps=d.of(1e-6, 1e-5),
        layer_types=kinds, eos_token_id=vocab - d.between(2, 6),
        tie_word_embeddings=d.flag(0.4), rope_parameters=dict(
            rope_type="default", rope_theta=d.of(1e3, 1e4, 1e6), partial_rotary_factor=share,
            mrope_section=[pairs - first - second, first, second], mrope_interleaved=True))


QWEN_SUMMARY = ("hidden_size", "layer_types", "num_attention_heads", "num_key_value_heads",
                "linear_num_key_heads", "linear_num_value_heads", "linear_conv_kernel_dim")
# Share of the Qwen line's shapes that have a draft head; it can be left out, and some releases do.
DRAFTS = 0.85
SPARSE_SUMMARY = ("num_experts", "num_experts_per_tok")


def qwen36(d):
    fp8 = d.flag(0.4)
    text = qwen_text(d, fp8)
    del text["intermediate_size"]
    v = dict(kind="moe", wrap=d.flag(), experts="split" if fp8 else d.of("split", "fused"),
             mtp=d.flag(DRAFTS), shards=d.between(1, 4), fp8=fp8, f32_gdn=not fp8 and d.flag(),
             tries=1, text=text)
    return v, prompt_length(d), QWEN_SUMMARY + SPARSE_SUMMARY


def qwen35dense(d):
    text = qwen_text(d, False)
    for key in ("num_experts", "num_experts_per_tok", "moe_intermediate_size",
                "shared_expert_intermediate_size"):
        del text[key]
    v = dict(kind="dense", wrap=d.flag(0.6), mtp=d.flag(DRAFTS), shards=d.between(1, 4),
             f32_gdn=d.flag(), tries=1, text=text)
    return v, prompt_length(d), QWEN_SUMMARY


def qwen3next(d):
    fp8 = d.flag(0.3)
    text = qwen_text(d, fp8)
    layers = text["num_hidden_layers"]
    rope = text["rope_parameters"]
    del rope["mrope_section"], rope["mrope_interleaved"]
    text.update(norm_topk_prob=d.flag(0.7), decoder_sparse_step=d.of(1, 1, 2),
                mlp_only_layers=d.of([], [], [d.between(0, layers - 1)]))
    v = dict(kind="next", wrap=False, experts="split", mtp=d.flag(DRAFTS), shards=d.between(1, 4),
             fp8=fp8, f32_gdn=not fp8 and d.flag(), tries=1, text=text)
    return v, prompt_length(d), QWEN_SUMMARY + SPARSE_SUMMARY + ("mlp_only_layers",)


def qwen38(d):
    fp8 = d.flag(0.4)
    text = qwen_text(d, fp8)
    del text["intermediate_size"]
    layers = text["num_hidden_layers"]
    ratio, longest, per = d.of(2, 3, 4, 8), d.between(2, 4), d.between(1, 4)
    index_heads = d.between(2, 5)
    rotated = int(text["head_dim"] * text["rope_parameters"]["partial_rotary_factor"])
    # Layer ids count from 1, and n-grams enter delta nets.
    linear = [i + 1 for i, kind in enumerate(text["layer_types"]) if kind == "linear_attention"]
    entered = sorted(d.rng.sample(linear, min(len(linear), d.between(0, 2))))
    e0 = text["eos_token_id"]
    text.update(
        norm_topk_prob=d.flag(0.7), hc_count=d.between(2, 5), hc_lowrank=d.between(4, 20),
        ple_layer_ids=entered, ple_embed_dim=(longest - 1) * per * d.between(4, 16),
        ple_conv_kernel_size=d.between(2, 5), ngram_size=longest, heads_per_ngram=per,
        ngram_vocab_size_base=d.between(40, 160),
        make_ngram_vocab_size_divisible_by=d.of(1, 2, 64, 128),
        split_ngram_parts=d.between(1, 5), seed=d.between(1, 9999), indexer_n_heads=index_heads,
        indexer_head_dim=rotated + d.between(0, 24, 2), indexer_budget=ratio * d.between(1, 5),
        indexer_compress_ratio=ratio, output_gate_type=d.of("sigmoid", "silu"),
        eos_token_id=d.of(e0, [e0, e0 - 2]))
    n_prompt = max(64, prompt_length(d, text["indexer_budget"] + 3 * ratio))
    eos_at = tuple(d.between(3, n_prompt - 1) for _ in range(d.between(0, 4)))
    v = dict(wrap=d.flag(), experts="split" if fp8 else d.of("split", "fused"), mtp=d.flag(DRAFTS),
             shards=d.between(1, 4), fp8=fp8, tries=1, eos_at=eos_at, text=text)
    return v, n_prompt, QWEN_SUMMARY + SPARSE_SUMMARY + (
        "hc_count", "ple_layer_ids", "ngram_size", "indexer_budget", "indexer_compress_ratio")


FAMILIES = dict(olmoe=olmoe, glm=glm, inkling=inkling, kimi_k3=kimi_k3, qwen36=qwen36,
                qwen35dense=qwen35dense, qwen3next=qwen3next, qwen38=qwen38,
                deepseek_v4=deepseek_v4)
