#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a small Qwen3-MoE language model. Needs only torch and numpy (pip install torch numpy).

    python3 train.py --data data --out $OUT --minutes 4

The arithmetic is that of transformers' Qwen3MoeForCausalLM (join.py checks the two against each other).
Writes into --out: ckpt.part*.bin (bf16 values, each at most 15 MiB), ckpt.json (names, shapes, offsets, config, losses), train.log.
With --save FILE also the fp32 state (for use as a teacher with --teachers).
"""
import argparse, json, math, os, subprocess, sys, time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PRESETS = {  # hidden, layers, heads, kv heads, head_dim, experts, top-k, expert width
    "base": dict(hidden=256, layers=6, heads=8, kv=4, head_dim=32, experts=16, topk=2, inter=256),
    "wide": dict(hidden=384, layers=6, heads=6, kv=2, head_dim=64, experts=8, topk=2, inter=256),
    "deep": dict(hidden=256, layers=8, heads=8, kv=4, head_dim=32, experts=12, topk=2, inter=256),
    "tiny": dict(hidden=128, layers=2, heads=4, kv=4, head_dim=32, experts=4, topk=2, inter=128),
    "teacher": dict(hidden=512, layers=8, heads=8, kv=4, head_dim=64, experts=8, topk=2, inter=512),
}


class RMSNorm(nn.Module):
    def __init__(self, n, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


def grouped_mm(x, w, offs):
    """x [M, K] with rows sorted by group, w [G, K, N], offs [G] int32 ends of the groups -> [M, N]."""
    f = getattr(F, "grouped_mm", None) or torch._grouped_mm
    return f(x, w, offs=offs)


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.gate_up = nn.Parameter(torch.empty(c["experts"], 2 * c["inter"], c["hidden"]))
        self.down = nn.Parameter(torch.empty(c["experts"], c["hidden"], c["inter"]))
        self.mode = "bmm"
        self.drop = 0.0

    def forward(self, x, index, weight):
        """x [T, H], index [T, k], weight [T, k] -> [T, H]. No token is ever dropped."""
        E, k, (T, H) = self.c["experts"], self.c["topk"], x.shape
        dt = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        x, gu, dn = x.to(dt), self.gate_up.to(dt), self.down.to(dt)
        flat = index.reshape(-1)
        order = torch.argsort(flat, stable=True)                       # rows sorted by expert
        rows = order // k
        count = torch.zeros(E, dtype=torch.long, device=x.device).scatter_add_(0, flat, torch.ones_like(flat))   # bincount would wait for the GPU
        offs = count.cumsum(0)
        rank = torch.arange(T * k, device=x.device) - (offs - count)[flat[order]]
        if self.mode == "gmm":                                         # groups padded to 8 rows: every address 16-byte aligned
            room = (count + 7) // 8 * 8
            ends = room.cumsum(0)
            total = T * k + 8 * E
            slot = (ends - room)[flat[order]] + rank
            ends = torch.cat((ends[:-1], ends.new_full((1,), total))).to(torch.int32)   # the last group takes the zero rows left
            xp = x.new_zeros(total, H).index_copy(0, slot, x[rows])
            g, u = grouped_mm(xp, gu.transpose(1, 2), ends).chunk(2, -1)
            h = F.dropout(F.silu(g) * u, self.drop, self.training)
            y = grouped_mm(h, dn.transpose(1, 2), ends)[slot]
        else:                                                          # a padded batch, as long as the fullest expert
            cap = int(count.max())
            cap = -(-cap // 64) * 64
            slot = flat[order] * cap + rank
            xp = x.new_zeros(E * cap, H).index_copy(0, slot, x[rows]).view(E, cap, H)
            g, u = torch.bmm(xp, gu.transpose(1, 2)).chunk(2, -1)
            h = F.dropout(F.silu(g) * u, self.drop, self.training)
            y = torch.bmm(h, dn.transpose(1, 2)).view(E * cap, H)[slot]
        back = torch.empty_like(order)
        back[order] = torch.arange(T * k, device=x.device)
        return (y[back].view(T, k, H) * weight.to(y.dtype)[..., None]).sum(1)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        H, D = c["hidden"], c["head_dim"]
        self.norm1, self.norm2 = RMSNorm(H), RMSNorm(H)
        self.q, self.k, self.v = (nn.Linear(H, n * D, bias=False) for n in (c["heads"], c["kv"], c["kv"]))
        self.o = nn.Linear(c["heads"] * D, H, bias=False)
        self.q_norm, self.k_norm = RMSNorm(D), RMSNorm(D)
        self.gate = nn.Parameter(torch.empty(c["experts"], H))
        self.experts = Experts(c)
        self.drop = self.attn_drop = self.jitter = 0.0

    def attention(self, x, cos, sin):
        B, T, _ = x.shape
        c = self.c
        q = self.q_norm(self.q(x).view(B, T, -1, c["head_dim"])).transpose(1, 2)
        k = self.k_norm(self.k(x).view(B, T, -1, c["head_dim"])).transpose(1, 2)
        v = self.v(x).view(B, T, -1, c["head_dim"]).transpose(1, 2)

        def rope(t):
            a, b = t.chunk(2, -1)
            return (t * cos + torch.cat((-b, a), -1) * sin).to(v.dtype)
        q, k = rope(q), rope(k)
        r = c["heads"] // c["kv"]
        if r > 1:
            k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.attn_drop if self.training else 0.0)
        return self.o(y.transpose(1, 2).reshape(B, T, -1))

    def moe(self, x):
        B, T, H = x.shape
        x = x.reshape(-1, H)
        with torch.autocast(x.device.type, enabled=False):              # the router in fp32
            xr = x.float()
            if self.training and self.jitter:
                xr = xr * (1 + self.jitter * (2 * torch.rand_like(xr) - 1))
            logits = F.linear(xr, self.gate.float())
            p = logits.softmax(-1)
            w, index = p.topk(self.c["topk"], -1)
            w = w / w.sum(-1, keepdim=True)
        E = self.c["experts"]
        load = F.one_hot(index, E).float().mean((0, 1))                  # share of the assignments; sums to 1
        aux = E * (load * p.mean(0)).sum()
        z = logits.logsumexp(-1).pow(2).mean()
        return self.experts(x, index, w).view(B, T, H), aux, z, load

    def forward(self, x, cos, sin):
        x = x + F.dropout(self.attention(self.norm1(x), cos, sin), self.drop, self.training)
        y, aux, z, load = self.moe(self.norm2(x))
        return x + F.dropout(y, self.drop, self.training), aux, z, load


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(c["vocab"], c["hidden"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.norm = RMSNorm(c["hidden"])
        self.head = None if c["tie"] else nn.Linear(c["hidden"], c["vocab"], bias=False)
        self.drop = 0.0
        std = 0.02 * math.sqrt(768 / c["hidden"])
        for n, p in self.named_parameters():
            if p.dim() > 1:
                last = n.endswith(("o.weight", "down"))
                nn.init.normal_(p, std=std / math.sqrt(2 * c["layers"]) if last else std)

    def set(self, mode=None, drop=0.0, attn_drop=0.0, expert_drop=0.0, jitter=0.0):
        self.drop = drop
        for l in self.layers:
            l.drop, l.attn_drop, l.experts.drop, l.jitter = drop, attn_drop, expert_drop, jitter
            l.experts.mode = mode or l.experts.mode

    def forward(self, ids):
        T, D = ids.shape[1], self.c["head_dim"]
        f = 1.0 / (self.c["theta"] ** (torch.arange(0, D, 2, dtype=torch.float32, device=ids.device) / D))
        a = torch.outer(torch.arange(T, dtype=torch.float32, device=ids.device), f)
        a = torch.cat((a, a), -1)
        cos, sin = a.cos(), a.sin()
        x = F.dropout(self.embed(ids), self.drop, self.training)
        aux = z = 0.0
        loads = []
        for l in self.layers:
            x, u, zz, load = l(x, cos, sin)
            aux, z = aux + u / len(self.layers), z + zz / len(self.layers)
            loads.append(load)
        x = F.dropout(self.norm(x), self.drop, self.training)
        w = self.embed.weight if self.head is None else self.head.weight
        return F.linear(x, w), aux, z, loads

    def to_hf(self, state=None):
        """The state under transformers' names, one tensor per expert."""
        s, out, c = state or self.state_dict(), {}, self.c
        out["model.embed_tokens.weight"] = s["embed.weight"]
        for i in range(c["layers"]):
            a, b = f"layers.{i}.", f"model.layers.{i}."
            out[b + "input_layernorm.weight"] = s[a + "norm1.weight"]
            for n in "qkvo":
                out[b + f"self_attn.{n}_proj.weight"] = s[a + n + ".weight"]
            for n in ("q_norm", "k_norm"):
                out[b + f"self_attn.{n}.weight"] = s[a + n + ".weight"]
            out[b + "post_attention_layernorm.weight"] = s[a + "norm2.weight"]
            out[b + "mlp.gate.weight"] = s[a + "gate"]
            for e in range(c["experts"]):
                g = s[a + "experts.gate_up"][e]
                out[b + f"mlp.experts.{e}.gate_proj.weight"] = g[: c["inter"]]
                out[b + f"mlp.experts.{e}.up_proj.weight"] = g[c["inter"]:]
                out[b + f"mlp.experts.{e}.down_proj.weight"] = s[a + "experts.down"][e]
        out["model.norm.weight"] = s["norm.weight"]
        if not c["tie"]:
            out["lm_head.weight"] = s["head.weight"]
        return {k: v.detach().contiguous() for k, v in out.items()}

    def from_hf(self, hf):
        c, s = self.c, {"embed.weight": hf["model.embed_tokens.weight"], "norm.weight": hf["model.norm.weight"]}
        for i in range(c["layers"]):
            a, b = f"layers.{i}.", f"model.layers.{i}."
            s[a + "norm1.weight"], s[a + "norm2.weight"] = hf[b + "input_layernorm.weight"], hf[b + "post_attention_layernorm.weight"]
            for n in "qkvo":
                s[a + n + ".weight"] = hf[b + f"self_attn.{n}_proj.weight"]
            for n in ("q_norm", "k_norm"):
                s[a + n + ".weight"] = hf[b + f"self_attn.{n}.weight"]
            s[a + "gate"] = hf[b + "mlp.gate.weight"]
            ex = [{n: hf[b + f"mlp.experts.{e}.{n}_proj.weight"] for n in ("gate", "up", "down")} for e in range(c["experts"])]
            s[a + "experts.gate_up"] = torch.stack([torch.cat((x["gate"], x["up"])) for x in ex])
            s[a + "experts.down"] = torch.stack([x["down"] for x in ex])
        if not c["tie"]:
            s["head.weight"] = hf["lm_head.weight"]
        self.load_state_dict({k: v.float() for k, v in s.items()})
        return self


def read(path):
    return torch.from_numpy(np.fromfile(path, dtype="<u2").astype(np.int64))


def windows(ids, ctx):
    """Consecutive windows: inputs ids[i*ctx : i*ctx+ctx], targets one further. The rest that fills no window is left out."""
    n = (len(ids) - 1) // ctx
    return ids[: n * ctx].view(n, ctx), ids[1: n * ctx + 1].view(n, ctx)


@torch.no_grad()
def evaluate(model, ids, ctx, dev, amp, per=64):
    model.eval()
    x, y = windows(ids, ctx)
    tot, loads = 0.0, 0
    for i in range(0, len(x), per):
        with torch.autocast(dev, dtype=torch.bfloat16, enabled=amp):
            logits, _, _, l = model(x[i: i + per])
        tot += F.cross_entropy(logits.float().flatten(0, 1), y[i: i + per].flatten(), reduction="sum").item()
        loads = loads + torch.stack(l) * len(x[i: i + per])
    model.train()
    return tot / y.numel(), loads / len(x)


def selftest(dev):
    """grouped_mm against the padded batch, forward and backward, in the dtype of the training."""
    torch.manual_seed(0)
    c = dict(PRESETS["base"])
    e = Experts(c).to(dev)
    for p in e.parameters():
        nn.init.normal_(p, std=0.05)
    x = torch.randn(3001, c["hidden"], device=dev)
    index = (torch.rand(3001, c["experts"], device=dev) * torch.linspace(0.3, 1, c["experts"], device=dev)).topk(2, -1)[1]
    w = torch.full((3001, 2), 0.5, device=dev)
    res = []
    for mode in ("bmm", "gmm"):
        e.mode = mode
        e.zero_grad()
        xx = x.clone().requires_grad_()
        with torch.autocast(dev, dtype=torch.bfloat16, enabled=dev == "cuda"):
            y = e(xx, index, w)
        y.float().pow(2).sum().backward()
        res.append([t.detach().float().clone() for t in (y, xx.grad, e.gate_up.grad, e.down.grad)])
    worst = max(((a - b).norm() / a.norm()).item() for a, b in zip(*res))
    print(f"grouped_mm against padded bmm: relative difference {worst:.2e}", flush=True)
    if dev == "cuda":
        for mode in ("bmm", "gmm"):
            e.mode = mode
            x = torch.randn(32768, c["hidden"], device=dev, requires_grad=True)
            index = torch.rand(32768, c["experts"], device=dev).topk(2, -1)[1]
            w = torch.full((32768, 2), 0.5, device=dev)
            for i in range(15):
                if i == 5:
                    torch.cuda.synchronize(); t = time.time()
                with torch.autocast(dev, dtype=torch.bfloat16):
                    e(x, index, w).float().pow(2).sum().backward()
            torch.cuda.synchronize()
            print(f"experts of one layer, 32768 tokens, forward and backward, {mode}: {(time.time() - t) * 100:.2f} ms", flush=True)
    return worst < 2e-2


def pick_mode(dev, log):
    """Run the self-test in a process of its own (a failed kernel would take this process's GPU context with it)."""
    try:
        r = subprocess.run([sys.executable, os.path.abspath(__file__), "--selftest", dev], capture_output=True, text=True, timeout=90)
        for l in (r.stdout.strip() or r.stderr.strip()[-300:]).splitlines():
            log("selftest: " + l)
        return "gmm" if r.returncode == 0 else "bmm"
    except Exception as ex:
        log(f"selftest: {type(ex).__name__}: {str(ex)[:120]}")
        return "bmm"


def save_parts(hf, cfg, info, out, limit=15 * 2**20):
    names, blobs, at = {}, [], 0
    for k, v in hf.items():
        b = v.to(torch.bfloat16).cpu().contiguous().view(torch.int16).numpy().tobytes()
        names[k] = {"shape": list(v.shape), "offset": at}
        blobs.append(b)
        at += len(b)
    data = b"".join(blobs)
    n = max(1, -(-len(data) // limit))
    step = -(-len(data) // n)
    parts = []
    for i in range(n):
        parts.append(f"ckpt.part{i}.bin")
        with open(os.path.join(out, parts[-1]), "wb") as f:
            f.write(data[i * step: (i + 1) * step])
    with open(os.path.join(out, "ckpt.json"), "w") as f:
        json.dump({"dtype": "bfloat16", "parts": parts, "bytes": len(data), "config": cfg, "info": info, "tensors": names}, f)
    return len(data), n


def decoder(path):
    """id -> text, for byte-level BPE, straight from tokenizer.json."""
    t = json.load(open(path, encoding="utf-8"))
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    m = {chr(b): b for b in keep}
    m.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in keep)})
    v = {i: bytes(m[ch] for ch in s) for s, i in t["model"]["vocab"].items()}
    v.update({a["id"]: a["content"].encode() for a in t["added_tokens"]})
    return lambda ids: b"".join(v[int(i)] for i in ids).decode("utf-8", "replace")


@torch.no_grad()
def sample(model, prompt, n, dev, amp, temp=0.8, top_p=0.95):
    model.eval()
    ids = prompt[None].clone()
    for _ in range(n):
        with torch.autocast(dev, dtype=torch.bfloat16, enabled=amp):
            logits = model(ids[:, -512:])[0][:, -1].float() / temp
        p, o = logits.softmax(-1).sort(-1, descending=True)
        p[p.cumsum(-1) - p > top_p] = 0
        nxt = o.gather(1, torch.multinomial(p / p.sum(), 1))
        ids = torch.cat((ids, nxt), 1)
        if nxt.item() == model.c["vocab"] - 4:
            break
    model.train()
    return ids[0]


def main():
    ap = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    A = ap.add_argument
    A("--data", default="data"); A("--out", default="out"); A("--save", default="", help="also write the fp32 state here")
    A("--minutes", type=float, default=4.0, help="end and save before this; the schedule shrinks to fit")
    A("--preset", default="base", choices=PRESETS)
    for k in ("hidden", "layers", "heads", "kv", "head_dim", "experts", "topk", "inter"):
        A("--" + k.replace("_", "-"), type=int, default=0, help="0: the preset's")
    A("--tie", type=int, default=1); A("--theta", type=float, default=10000.0); A("--vocab", type=int, default=4096)
    A("--ctx", type=int, default=512); A("--long", type=int, default=2048, help="some steps use windows of this length, so that all positions are trained")
    A("--long-frac", type=float, default=0.2); A("--tokens", type=int, default=32768, help="tokens a step")
    A("--chat", type=float, default=0.1, help="share of the windows from chat.bin")
    A("--epochs", type=float, default=30.0, help="passes over train.bin"); A("--steps", type=int, default=0, help="instead of --epochs")
    A("--lr", type=float, default=2e-3); A("--min-lr", type=float, default=0.02, help="as a share of lr"); A("--warmup", type=int, default=100)
    A("--wd", type=float, default=0.5); A("--beta2", type=float, default=0.98); A("--clip", type=float, default=1.0)
    A("--dropout", type=float, default=0.2); A("--attn-dropout", type=float, default=0.1); A("--expert-dropout", type=float, default=0.1)
    A("--jitter", type=float, default=0.0); A("--word-drop", type=float, default=0.0, help="share of the inputs replaced by random tokens")
    A("--aux", type=float, default=0.01); A("--z", type=float, default=1e-4); A("--smooth", type=float, default=0.0, help="label smoothing")
    A("--ema", type=float, default=0.995); A("--eval-every", type=int, default=100); A("--seed", type=int, default=1)
    A("--mode", default="auto", choices=["auto", "gmm", "bmm"]); A("--compile", type=int, default=0); A("--device", default="")
    A("--amp", type=int, default=-1, help="bf16 autocast; -1: on the GPU only")
    A("--teachers", default="", help="comma-separated --save files; their mean distribution is the soft target"); A("--kd", type=float, default=0.6)
    A("--selftest", default="", help="cpu or cuda: check and time the two ways to run the experts, and end")
    A("--samples", type=int, default=3); A("--val-windows", type=int, default=0, help="evaluate on so many windows while training (for a slow machine); 0: all")
    a = ap.parse_args()
    if a.selftest:
        sys.exit(0 if selftest(a.selftest) else 1)
    t0 = time.time()
    limit = a.minutes * 60
    os.makedirs(a.out, exist_ok=True)
    logf = open(os.path.join(a.out, "train.log"), "w")

    def log(s):
        print(s, flush=True); logf.write(s + "\n"); logf.flush()

    dev = a.device or ("cuda" if torch.cuda.is_available() else "cpu")
    amp = a.amp == 1 or (a.amp < 0 and dev == "cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    mode = a.mode if a.mode != "auto" else (pick_mode(dev, log) if dev == "cuda" else "bmm")
    torch.manual_seed(a.seed)
    c = dict(PRESETS[a.preset])
    c.update({k: getattr(a, k) for k in c if getattr(a, k)})
    c.update(vocab=a.vocab, tie=bool(a.tie), theta=a.theta)
    model = Model(c).to(dev)
    model.set(mode, a.dropout, a.attn_dropout, a.expert_dropout, a.jitter)
    nparam = sum(p.numel() for p in model.parameters())
    nexp = sum(p.numel() for l in model.layers for p in l.experts.parameters())
    active = nparam - nexp + nexp * c["topk"] // c["experts"]
    log(f"args {json.dumps(vars(a))}")
    log(f"torch {torch.__version__} on {torch.cuda.get_device_name() if dev == 'cuda' else 'cpu'}, experts by {mode}, autocast {amp}; "
        f"{nparam / 1e6:.2f} M parameters, {active / 1e6:.2f} M active, {nexp / 1e6:.2f} M in experts")

    train, val = read(os.path.join(a.data, "train.bin")).to(dev), read(os.path.join(a.data, "val.bin")).to(dev)
    chat = read(os.path.join(a.data, "chat.bin")).to(dev) if a.chat > 0 and os.path.exists(os.path.join(a.data, "chat.bin")) else None
    val_all = val
    val = val[: a.val_windows * a.ctx + 1] if a.val_windows else val
    log(f"tokens: train {len(train)}, val {len(val)}, chat {0 if chat is None else len(chat)}")
    total = a.steps or int(a.epochs * len(train) / a.tokens)

    teachers = []
    for f in filter(None, a.teachers.split(",")):
        d = torch.load(f, map_location="cpu", weights_only=True)
        t = Model(d["config"]).to(dev)
        t.load_state_dict(d["state"])
        t.set(mode)
        if amp:
            t.bfloat16()
        teachers.append(t.eval().requires_grad_(False))
        log(f"teacher {f}: val {d['val']:.4f}")

    decay = [p for n, p in model.named_parameters() if p.dim() > 1]
    plain = [p for n, p in model.named_parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": a.wd}, {"params": plain, "weight_decay": 0.0}],
                            lr=a.lr, betas=(0.9, a.beta2), eps=1e-8, fused=dev == "cuda")
    params = [p for p in model.parameters()]
    ema = [p.detach().clone() for p in params]
    g = torch.Generator().manual_seed(a.seed)

    def batch(ctx):
        n = max(1, a.tokens // ctx)
        m = int(round(n * a.chat)) if chat is not None else 0
        ar = torch.arange(ctx + 1, device=dev)
        w = train[torch.randint(0, len(train) - ctx - 1, (n - m,), generator=g).to(dev)[:, None] + ar]
        if m:
            w = torch.cat((w, chat[torch.randint(0, len(chat) - ctx - 1, (m,), generator=g).to(dev)[:, None] + ar]))
        x, y = w[:, :-1], w[:, 1:]
        if a.word_drop:
            x = torch.where(torch.rand(x.shape, device=dev) < a.word_drop, torch.randint(0, a.vocab - 4, x.shape, device=dev), x)
        return x, y

    def loss_of(x, y):
        with torch.autocast(dev, dtype=torch.bfloat16, enabled=amp):
            logits, aux, z, loads = model(x)
        logits = logits.float().flatten(0, 1)
        ce = F.cross_entropy(logits, y.flatten(), label_smoothing=a.smooth)
        main = ce
        if teachers:
            with torch.no_grad():
                p = 0
                for t in teachers:
                    with torch.autocast(dev, dtype=torch.bfloat16, enabled=amp):
                        p = p + t(x)[0].float().flatten(0, 1).softmax(-1)
                p = p / len(teachers)
            main = (1 - a.kd) * ce - a.kd * (p * logits.log_softmax(-1)).sum(-1).mean()
        return main + a.aux * aux + a.z * z, ce.detach(), aux.detach()

    step_loss = loss_of
    if a.compile:
        try:
            step_loss = torch.compile(loss_of, dynamic=False)
            step_loss(*batch(a.ctx))[0].backward()
            opt.zero_grad(set_to_none=True)
            log(f"compiled, {time.time() - t0:.0f} s")
        except Exception as ex:
            log(f"compile failed ({type(ex).__name__}: {str(ex)[:200]}); eager")
            step_loss = loss_of

    def with_ema(f):
        keep = [p.detach().clone() for p in params]
        with torch.no_grad():
            for p, e in zip(params, ema):
                p.copy_(e)
        r = f()
        with torch.no_grad():
            for p, k in zip(params, keep):
                p.copy_(k)
        return r

    rng = np.random.default_rng(a.seed)
    best, best_state, best_at, step, run = 1e9, None, "", 0, 0.0
    evaluate(model, val[: 2 * a.ctx + 1], a.ctx, dev, amp)              # warms up
    te = time.time()
    v, _ = evaluate(model, val, a.ctx, dev, amp)
    reserve = (20.0 if dev == "cuda" else 10.0) + (6 if not a.val_windows else 3 * len(val_all) / len(val)) * (time.time() - te)   # seconds to check, save and sample in
    log(f"val before training {v:.4f}; {reserve:.0f} s are kept back for the end")
    start = last = time.time()
    model.train()
    while True:
        now = time.time()
        used = (now - start) / max(1e-9, limit - reserve - (start - t0))
        prog = max(step / total, used)                                  # whichever ends first shapes the cosine
        if prog >= 1:
            break
        lr = a.lr * min(1.0, (step + 1) / a.warmup) * (a.min_lr + (1 - a.min_lr) * 0.5 * (1 + math.cos(math.pi * prog)))
        for gr in opt.param_groups:
            gr["lr"] = lr
        x, y = batch(a.long if rng.random() < a.long_frac else a.ctx)
        loss, ce, aux = step_loss(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(params, a.clip)
        opt.step()
        opt.zero_grad(set_to_none=True)
        step += 1
        with torch.no_grad():
            torch._foreach_lerp_(ema, [p.detach() for p in params], 1 - min(a.ema, (step + 1) / (step + 10)))
        run = ce if step == 1 else 0.98 * run + 0.02 * ce
        if step % a.eval_every == 0 or step == total:
            v, _ = evaluate(model, val, a.ctx, dev, amp)
            ve, loads = with_ema(lambda: evaluate(model, val, a.ctx, dev, amp))
            for w, val_now in (("raw", v), ("ema", ve)):
                if val_now < best:
                    best, best_at = val_now, f"step {step} {w}"
                    src = params if w == "raw" else ema
                    best_state = {n: p.detach().clone() for (n, _), p in zip(model.named_parameters(), src)}
            ld = loads.flatten() * c["experts"]
            dt = (time.time() - last) / a.eval_every
            last = time.time()
            log(f"step {step}/{total} epoch {step * a.tokens / len(train):.1f} lr {lr:.2e} train {run.item():.4f} val {v:.4f} ema {ve:.4f} best {best:.4f} "
                f"(ppl {math.exp(best):.2f}) aux {aux.item():.3f} load {ld.min():.2f}..{ld.max():.2f} {dt * 1e3:.0f} ms/step {last - t0:.0f} s")
            if not math.isfinite(v):
                log("the loss is no longer finite; stopping")
                break
            if min(v, ve) > best + 0.25:
                log("validation has turned well above the best; stopping")
                break
    if best_state is None:
        v, _ = evaluate(model, val, a.ctx, dev, amp)
        best, best_at, best_state = v, f"step {step} raw", {n: p.detach().clone() for n, p in model.named_parameters()}

    model.load_state_dict(best_state)
    if a.save:
        torch.save({"config": c, "state": best_state, "val": best}, a.save)
    model.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in best_state.items()})
    val = val_all
    torch.backends.cuda.matmul.allow_tf32 = False
    model.set("bmm")
    v32, loads = evaluate(model, val, a.ctx, dev, False)                # with the rounded weights, in fp32
    info = {"best": best, "best_at": best_at, "val_fp32_of_bf16_weights": v32, "ppl": math.exp(v32), "steps": step, "parameters": nparam,
            "active": active, "ctx": a.ctx, "args": vars(a), "seconds": round(time.time() - t0, 1)}
    if len(val) > a.long:
        info["val_long"] = evaluate(model, val, a.long, dev, False, per=8)[0]
    size, n = save_parts(model.to_hf(), c, info, a.out)                 # saved before anything optional
    log(f"best {best:.4f} at {best_at}; bf16 weights in fp32: val {v32:.4f} ppl {math.exp(v32):.3f}, at window {a.long}: {info.get('val_long', float('nan')):.4f}")
    log("load of the experts (1 = even), per layer:")
    for i, l in enumerate(loads.tolist()):
        log(f"  {i}: " + " ".join(f"{x * c['experts']:.2f}" for x in l))
    log(f"saved {size / 2**20:.1f} MiB in {n} parts, {time.time() - t0:.0f} s")
    tk = os.path.join(a.data, "tokenizer.json")
    if os.path.exists(tk) and time.time() - t0 < limit - 6:
        dec = decoder(tk)
        for i in range(a.samples):
            if time.time() - t0 > limit - 4:
                break
            at = (i * 2 + 1) * len(val) // (2 * a.samples)
            log(f"--- sample {i}: " + dec(val[at: at + 16]).replace("\n", " / ") + " >>> " + dec(sample(model, val[at: at + 16], 120, dev, amp)[16:]))
    log(f"done, {time.time() - t0:.0f} s" + (f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of GPU memory at most" if dev == "cuda" else ""))


if __name__ == "__main__":
    main()
