"""A low-rank matrix kept as two factors: every circuit of a head, never multiplied out.

An expanded circuit is d_vocab x d_vocab but only of rank d_head. Keeping A (rows, rank) and
B (rank, cols) makes every question about A @ B cost about as much as the factors do.
Source: Elhage et al. 2021, Technical Details (working with low-rank matrices).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor

from pathsum.model import check_numbers

CHUNK = 2**24  # entries of the product held at a time when it is scanned (64 MB of fp32)


@dataclass(frozen=True)
class FactoredMatrix:
    """The product A @ B, with batch axes in front (heads, layers) that both factors share.

    ValueError if the inner sizes differ or the batch axes do not broadcast, or for NaN entries.
    """

    A: Tensor  # (*batch, rows, rank)
    B: Tensor  # (*batch, rank, cols); batch axes may broadcast against those of A

    def __post_init__(self) -> None:
        a, b = tuple(self.A.shape), tuple(self.B.shape)
        if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
            raise ValueError(
                f"factors must be (..., rows, rank) and (..., rank, cols), got {a} and {b}"
            )
        if not (self.A.is_floating_point() and self.B.is_floating_point()):
            raise ValueError(
                f"factors must be floating point, got {self.A.dtype} and {self.B.dtype}"
            )
        if self.A.device != self.B.device or self.A.device.type == "meta":
            raise ValueError(
                "factors must lie on one device that holds numbers, got "
                f"{str(self.A.device)!r} and {str(self.B.device)!r}: move one with .to(...)"
            )
        if any(part.sum().isnan() and part.isnan().any() for part in (self.A, self.B)):
            raise ValueError("a factor holds NaN: were the weights loaded and trained properly?")
        batch = torch.broadcast_shapes(a[:-2], b[:-2])
        object.__setattr__(self, "A", self.A.expand(*batch, *a[-2:]))
        object.__setattr__(self, "B", self.B.expand(*batch, *b[-2:]))

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., rows, cols) of the product."""
        return (*self.A.shape[:-1], self.B.shape[-1])

    @property
    def rank(self) -> int:
        """The inner size: an upper bound on the rank of the product."""
        return self.A.shape[-1]

    @property
    def mT(self) -> "FactoredMatrix":
        """The transpose, B.mT @ A.mT."""
        return FactoredMatrix(self.B.mT, self.A.mT)

    def __getitem__(self, index: int | slice | tuple) -> "FactoredMatrix":
        """Index the batch axes: `ov[1, 4]` is one head's matrix."""
        parts = index if isinstance(index, tuple) else (index,)
        if len(parts) > self.A.ndim - 2:
            raise IndexError(
                f"only the {self.A.ndim - 2} batch axes can be indexed, got {len(parts)} indices: "
                "use rows(), columns() or entries() for the matrix itself"
            )
        return FactoredMatrix(self.A[index], self.B[index])

    def __matmul__(self, other: "FactoredMatrix | Tensor") -> "FactoredMatrix":
        """The product with a matrix on the right, still factored at the smaller of both ranks."""
        if isinstance(other, Tensor):
            return FactoredMatrix(self.A, self.B @ other)
        middle = self.B @ other.A
        if self.rank <= other.rank:
            return FactoredMatrix(self.A, middle @ other.B)
        return FactoredMatrix(self.A @ middle, other.B)

    def __rmatmul__(self, other: Tensor) -> "FactoredMatrix":
        """The product with a tensor on the left: a matrix, or a batch of them."""
        return FactoredMatrix(other @ self.A, self.B)

    def dense(self) -> Float[Tensor, "*batch rows cols"]:
        """The product multiplied out. ValueError above CHUNK entries: ask for parts instead."""
        size = int(torch.Size(self.shape).numel())
        if size > CHUNK:
            raise ValueError(
                f"the product {self.shape} has {size:,} entries, more than {CHUNK:,}: use rows(), "
                "columns(), entries(), diagonal() or topk()"
            )
        return self.A @ self.B

    def rows(self, index: Int[Tensor, " n"] | list[int]) -> Float[Tensor, "*batch n cols"]:
        """The named rows of the product."""
        return self.A[..., index, :] @ self.B

    def columns(self, index: Int[Tensor, " n"] | list[int]) -> Float[Tensor, "*batch rows n"]:
        """The named columns of the product."""
        return self.A @ self.B[..., index]

    def entries(
        self, rows: Int[Tensor, " n"], columns: Int[Tensor, " n"]
    ) -> Float[Tensor, "*batch n"]:
        """Single entries (rows[i], columns[i])."""
        return (self.A[..., rows, :] * self.B[..., columns].mT).sum(-1)

    def diagonal(self) -> Float[Tensor, "*batch n"]:
        """The diagonal, min(rows, cols) entries."""
        n = min(self.shape[-2:])
        return (self.A[..., :n, :] * self.B[..., :n].mT).sum(-1)

    def trace(self) -> Float[Tensor, "*batch"]:
        """The sum of the diagonal, in float64. ValueError unless square."""
        self._need_square()
        return contract(self.B, self.A).diagonal(dim1=-2, dim2=-1).sum(-1)

    def eigenvalues(self) -> Inexact[Tensor, "*batch rank"]:
        """The `rank` eigenvalues of the small product B @ A, complex128, largest first.

        AB and BA share their non-zero eigenvalues; the product has min(rows, rank) of them and
        zeros otherwise. ValueError unless square and finite.
        """
        self._need_square()
        small = contract(self.B, self.A)
        check_numbers(small, "the product B @ A")  # LAPACK does not come back from infinity
        values = torch.linalg.eigvals(small.cpu())
        order = values.abs().argsort(dim=-1, descending=True)
        return values.gather(-1, order)

    def norm(self) -> Float[Tensor, "*batch"]:
        """The Frobenius norm in float64: sqrt(tr((A^T A)(B B^T))), from two small Gram matrices."""
        grams = contract(self.A.mT, self.A), contract(self.B, self.B.mT)
        return (grams[0] * grams[1]).sum((-1, -2)).clamp_min(0).sqrt()

    def svd(
        self,
    ) -> tuple[
        Float[Tensor, "*batch rows k"], Float[Tensor, "*batch k"], Float[Tensor, "*batch k cols"]
    ]:
        """U, S, Vh of the product, k = min(rows, rank, cols), in float64, largest first.

        From a QR decomposition of each factor and the SVD of the small middle. Vectors of equal
        singular values are not unique.
        """
        Q_A, R_A = torch.linalg.qr(self.A.double())
        Q_B, R_B = torch.linalg.qr(self.B.double().mT)
        U, S, Vh = torch.linalg.svd(R_A @ R_B.mT, full_matrices=False)
        return Q_A @ U, S, Vh @ Q_B.mT

    def topk(
        self, k: int, largest: bool = True
    ) -> tuple[Float[Tensor, "*batch k"], Int[Tensor, "*batch k"], Int[Tensor, "*batch k"]]:
        """The k largest (or smallest) entries of each matrix: values, rows and columns.

        Scans the product in chunks of rows: at most about CHUNK entries are in memory. A row whose
        best entry is not among the k best so far is passed over. ValueError if there are fewer than k
        entries.
        """
        n_rows, n_cols = self.shape[-2:]
        if not 1 <= k <= n_rows * n_cols:
            raise ValueError(f"k must lie in 1..{n_rows * n_cols} for {self.shape}, got {k}")
        batch, sign = self.shape[:-2], 1 if largest else -1
        A, B = self.A.reshape(-1, n_rows, self.rank), self.B.reshape(-1, self.rank, n_cols)
        found = [_topk(sign * one_A, one_B, k) for one_A, one_B in zip(A, B)]
        values, rows, columns = (torch.stack(part).reshape(*batch, k) for part in zip(*found))
        return sign * values, rows, columns

    def _need_square(self) -> None:
        if self.shape[-1] != self.shape[-2]:
            raise ValueError(f"only a square product has eigenvalues and a trace, got {self.shape}")


def contract(
    left: Float[Tensor, "*batch m n"], right: Float[Tensor, "*batch n k"]
) -> Float[Tensor, "*batch m k"]:
    """left @ right in float64, a piece of the inner axis at a time: n may be a whole vocabulary.

    No float64 copy of a factor is made, only of pieces of about CHUNK / 4 entries.
    """
    widest = max(left[..., :1].numel(), right[..., :1, :].numel())
    step = max(1, CHUNK // 4 // widest)
    pieces = zip(left.split(step, dim=-1), right.split(step, dim=-2))
    return sum(a.double() @ b.double() for a, b in pieces)


def _topk(A: Tensor, B: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values, rows and columns of the k largest entries of one product A @ B, largest first."""
    n_cols = B.shape[-1]
    step = max(1, CHUNK // n_cols)
    values, places = A.new_empty(0), torch.empty(0, dtype=torch.long, device=A.device)
    for first in range(0, A.shape[0], step):
        part = A[first : first + step] @ B
        rows = torch.arange(first, first + len(part), device=A.device)
        if len(values) == k:
            better = part.amax(-1) > values[-1]
            part, rows = part[better], rows[better]
        top = part.flatten().topk(min(k, part.numel()))
        where = rows[top.indices // n_cols] * n_cols + top.indices % n_cols
        values, places = torch.cat([values, top.values]), torch.cat([places, where])
        best = values.topk(min(k, len(values)))
        values, places = best.values, places[best.indices]
    return values, places // n_cols, places % n_cols
