"""The fused C kernels (fused.c) as PyTorch autograd functions. float32, CPU, contiguous rows.

The library is compiled on first use with the local machine's instruction set, beside a hash of
its source in --build-dir ($BRIGADE_TRAIN_BUILD or ~/.cache/brigade_train).
"""
import ctypes
import hashlib
import os
import subprocess

import torch

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fused.c")
FLAGS = "-O3 -march=native -mprefer-vector-width=512 -ffast-math -shared -fPIC".split()


def _library():
    """Compiles fused.c once per content and loads it."""
    folder = os.environ.get("BRIGADE_TRAIN_BUILD", os.path.expanduser("~/.cache/brigade_train"))
    os.makedirs(folder, exist_ok=True)
    with open(SOURCE, "rb") as f:
        digest = hashlib.sha256(f.read() + " ".join(FLAGS).encode()).hexdigest()[:16]
    path = os.path.join(folder, f"fused_{digest}.so")
    if not os.path.exists(path):
        temporary = f"{path}.{os.getpid()}"
        subprocess.run(["gcc", *FLAGS, SOURCE, "-o", temporary, "-lmvec", "-lm"], check=True)
        os.replace(temporary, path)
    lib = ctypes.CDLL(path)
    for name in ("cross_entropy", "cross_entropy_soft", "sum_of_squares"):
        getattr(lib, name).restype = ctypes.c_double
    return lib


LIB = _library()
LONG, FLOAT, U32 = ctypes.c_long, ctypes.c_float, ctypes.c_uint32


def ptr(t):
    """The address of t's data; the caller keeps t alive until the call returns."""
    return ctypes.c_void_p(t.data_ptr())


class RmsNorm(torch.autograd.Function):
    """x [n, d], w [d] -> x / rms(x) * w."""

    @staticmethod
    def forward(ctx, x, w, eps):
        x = x.contiguous()
        n, d = x.shape
        y, inverse = torch.empty_like(x), torch.empty(n)
        LIB.rms_forward(ptr(x), ptr(w), ptr(y), ptr(inverse), LONG(n), LONG(d), FLOAT(eps))
        ctx.save_for_backward(x, w, inverse)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w, inverse = ctx.saved_tensors
        dy = dy.contiguous()
        dx, dw = torch.empty_like(x), torch.zeros_like(w)
        LIB.rms_backward(ptr(x), ptr(w), ptr(inverse), ptr(dy), ptr(dx), ptr(dw),
                         LONG(x.shape[0]), LONG(x.shape[1]))
        return dx, dw, None


class ResidualDropout(torch.autograd.Function):
    """x + dropout(branch); the mask is a function of `seed`."""

    @staticmethod
    def forward(ctx, x, branch, rate, seed):
        x, branch = x.contiguous(), branch.contiguous()
        keep = 1.0 - rate
        ctx.args = (U32(seed & 0xFFFFFFFF), U32(int(keep * 4294967295)), FLOAT(1.0 / keep))
        y = torch.empty_like(x)
        LIB.residual_dropout(ptr(x), ptr(branch), ptr(y), LONG(x.numel()), *ctx.args)
        return y

    @staticmethod
    def backward(ctx, dy):
        dy = dy.contiguous()
        dbranch = torch.empty_like(dy)
        LIB.dropout_backward(ptr(dy), ptr(dbranch), LONG(dy.numel()), *ctx.args)
        return dy, dbranch, None, None


class Attention(torch.autograd.Function):
    """Causal grouped-query attention of whole documents laid end to end.

    qkv [N, (H + 2K) D], lengths of the documents (sum N), cos and sin [max_length, D / 2].
    Each document attends to itself only. Returns [N, H D].
    """

    @staticmethod
    def forward(ctx, qkv, lengths, cos, sin, heads, kv_heads, dim):
        qkv = qkv.contiguous()
        scale, group = dim ** -0.5, heads // kv_heads
        out = torch.empty(qkv.shape[0], heads * dim)
        saved, row = [], 0
        for n in lengths:
            q = torch.empty(kv_heads, group * n, dim)
            k, v = torch.empty(kv_heads, n, dim), torch.empty(kv_heads, n, dim)
            LIB.split_qkv(ptr(qkv[row]), ptr(q), ptr(k), ptr(v), ptr(cos), ptr(sin),
                          *map(LONG, (n, heads, kv_heads, dim)), FLOAT(scale))
            p = torch.bmm(q, k.transpose(1, 2))
            LIB.softmax_causal(ptr(p), LONG(heads), LONG(n))
            o = torch.bmm(p, v)
            LIB.heads_to_rows(ptr(o), ptr(out[row]), *map(LONG, (n, heads, dim)))
            saved.append((q, k, v, p))
            row += n
        ctx.saved, ctx.rope, ctx.dims = saved, (cos, sin), (lengths, heads, kv_heads, dim, scale)
        return out

    @staticmethod
    def backward(ctx, dout):
        (cos, sin), (lengths, heads, kv_heads, dim, scale) = ctx.rope, ctx.dims
        dout = dout.contiguous()
        group, row = heads // kv_heads, 0
        dqkv = torch.empty(dout.shape[0], (heads + 2 * kv_heads) * dim)
        for n, (q, k, v, p) in zip(lengths, ctx.saved):
            do = torch.empty(kv_heads, group * n, dim)
            LIB.rows_to_heads(ptr(dout[row]), ptr(do), *map(LONG, (n, heads, dim)))
            dv = torch.bmm(p.transpose(1, 2), do)
            ds = torch.bmm(do, v.transpose(1, 2))
            LIB.softmax_causal_backward(ptr(p), ptr(ds), LONG(heads), LONG(n))
            dq, dk = torch.bmm(ds, k), torch.bmm(ds.transpose(1, 2), q)
            LIB.split_qkv_backward(ptr(dqkv[row]), ptr(dq), ptr(dk), ptr(dv), ptr(cos), ptr(sin),
                                   *map(LONG, (n, heads, kv_heads, dim)), FLOAT(scale))
            row += n
        ctx.saved = None
        return (dqkv,) + (None,) * 6


class SwiGlu(torch.autograd.Function):
    """h [n, 2f] = gate | up -> silu(gate) * up [n, f]."""

    @staticmethod
    def forward(ctx, h):
        h = h.contiguous()
        n, f2 = h.shape
        a = torch.empty(n, f2 // 2)
        LIB.swiglu_forward(ptr(h), ptr(a), LONG(n), LONG(f2 // 2))
        ctx.save_for_backward(h)
        return a

    @staticmethod
    def backward(ctx, da):
        h, = ctx.saved_tensors
        da, dh = da.contiguous(), torch.empty_like(h)
        LIB.swiglu_backward(ptr(h), ptr(da), ptr(dh), LONG(h.shape[0]), LONG(da.shape[1]))
        return dh


class Experts(torch.autograd.Function):
    """Weighted sum of each row's experts; rows grouped by expert, one product per matrix.

    x [N, d], chosen [N, k] int64, weights [N, k], w13 [E, 2f, d] (gate | up), w2 [E, d, f].
    The gradients of w13 and w2 are added straight into w13.grad and w2.grad.
    """

    @staticmethod
    def forward(ctx, x, chosen, weights, w13, w2):
        x = x.contiguous()
        (rows, d), (experts, f2, _), k = x.shape, w13.shape, chosen.shape[1]
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=experts).tolist()
        source = torch.div(order, k, rounding_mode="floor")
        row_weights = weights.reshape(-1)[order].contiguous()
        m, f = flat.numel(), f2 // 2
        xs, h, a, y = (torch.empty(m, c) for c in (d, f2, f, d))
        LIB.gather_rows(ptr(x), ptr(source), ptr(xs), LONG(m), LONG(d))
        start = 0
        for e, n in enumerate(counts):
            if n:
                part = slice(start, start + n)
                torch.mm(xs[part], w13[e].t(), out=h[part])
                LIB.swiglu_forward(ptr(h[part]), ptr(a[part]), LONG(n), LONG(f))
                torch.mm(a[part], w2[e].t(), out=y[part])
            start += n
        out = torch.zeros(rows, d)
        LIB.scatter_add(ptr(y), ptr(source), ptr(row_weights), ptr(out), LONG(m), LONG(d))
        ctx.saved = (xs, h, a, y, source, row_weights, order, w13, w2)
        ctx.sizes = (counts, rows, k)
        return out

    @staticmethod
    def backward(ctx, dout):
        xs, h, a, y, source, row_weights, order, w13, w2 = ctx.saved
        counts, rows, k = ctx.sizes
        ctx.saved = None
        dout = dout.contiguous()
        (m, d), f = xs.shape, a.shape[1]
        dy, dweights = torch.empty(m, d), torch.empty(m)
        LIB.scatter_add_backward(ptr(dout), ptr(y), ptr(source), ptr(row_weights), ptr(dy),
                                 ptr(dweights), LONG(m), LONG(d))
        dxs, start = y, 0  # y is not needed any more: its memory becomes dxs
        for e, n in enumerate(counts):
            if n:
                part = slice(start, start + n)
                da, dh = torch.mm(dy[part], w2[e]), torch.empty(n, 2 * f)
                w2.grad[e].addmm_(dy[part].t(), a[part])
                LIB.swiglu_backward(ptr(h[part]), ptr(da), ptr(dh), LONG(n), LONG(f))
                torch.mm(dh, w13[e].detach(), out=dxs[part])
                w13.grad[e].addmm_(dh.t(), xs[part])
            start += n
        dx, ones = torch.zeros(rows, d), torch.ones(m)
        LIB.scatter_add(ptr(dxs), ptr(source), ptr(ones), ptr(dx), LONG(m), LONG(d))
        dweights_in_order = torch.empty(m)
        dweights_in_order[order] = dweights
        return dx, None, dweights_in_order.view(rows, k), None, None


class OutputLoss(torch.autograd.Function):
    """Output projection and mean cross-entropy in one, `chunk` rows at a time.

    x [N, d], w [V, d], y [N] int64. With teacher probabilities q [N, V] the labels are
    soft * q + (1 - soft) * onehot(y).
    """

    @staticmethod
    def forward(ctx, x, w, y, q=None, soft=0.0, chunk=512):
        x = x.contiguous()
        (rows, _), vocabulary = x.shape, w.shape[0]
        dx, dw, buffer = torch.empty_like(x), torch.zeros_like(w), torch.empty(chunk, vocabulary)
        total, scale = 0.0, FLOAT(1.0 / rows)
        for s in range(0, rows, chunk):
            xs, ys = x[s:s + chunk], y[s:s + chunk].contiguous()
            n = xs.shape[0]
            logits = torch.mm(xs, w.t(), out=buffer[:n])
            if q is None:
                total += LIB.cross_entropy(ptr(logits), ptr(ys), LONG(n), LONG(vocabulary), scale)
            else:
                qs = q[s:s + chunk].float().contiguous()
                total += LIB.cross_entropy_soft(ptr(logits), ptr(qs), ptr(ys), LONG(n),
                                                LONG(vocabulary), scale, FLOAT(soft))
            torch.mm(logits, w, out=dx[s:s + n])
            dw.addmm_(logits.t(), xs)
        ctx.save_for_backward(dx, dw)
        return torch.tensor(total / rows)

    @staticmethod
    def backward(ctx, g):
        dx, dw = ctx.saved_tensors
        return dx * g, dw * g, None, None, None, None
