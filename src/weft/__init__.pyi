"""The face of weft: the one list of its public names; `weft/__init__.py` loads each at first use.

A name that is imported here is `weft.NAME`, in `weft.__all__`, known to type checkers and tested.
"""

from .analysis.alignment.align import Alignment as Alignment
from .analysis.alignment.align import align as align
from .analysis.alignment.error_rate import ErrorRate as ErrorRate
from .analysis.alignment.error_rate import alignment_error_rate as alignment_error_rate
from .analysis.image_map import ImageMap as ImageMap
from .errors import BackendError as BackendError
from .errors import DataError as DataError
from .errors import InputError as InputError
from .errors import ShapeError as ShapeError
from .errors import VerificationError as VerificationError
from .errors import WeftError as WeftError
from .formats.history import History as History
from .formats.pharaoh import read_pharaoh as read_pharaoh
from .formats.trace import TraceLayer as TraceLayer
from .jobs.steps import steps as steps
from .mechanism.adjacency import neighbours as neighbours
from .mechanism.function import attend as attend
from .mechanism.function import attention as attention
from .mechanism.graph import All as All
from .mechanism.graph import AttentionGraph as AttentionGraph
from .mechanism.graph import Top as Top
from .mechanism.graph_convolution import GATConv as GATConv
from .mechanism.graph_convolution import GATv2Conv as GATv2Conv
from .mechanism.mask import Mask as Mask
from .mechanism.masks import causal as causal
from .mechanism.masks import padding as padding
from .mechanism.masks import window as window
from .mechanism.matrix.attention_matrix import AttentionMatrix as AttentionMatrix
from .mechanism.multihead import MultiHeadAttention as MultiHeadAttention
from .mechanism.packed import packed as packed
from .mechanism.positions import ALiBi as ALiBi
from .mechanism.positions import Buckets as Buckets
from .mechanism.positions import Shaw as Shaw
from .mechanism.positions import alibi_slopes as alibi_slopes
from .mechanism.positions import rotary as rotary
from .mechanism.positions import sinusoidal as sinusoidal
from .mechanism.scores import Additive as Additive
from .mechanism.scores import Bilinear as Bilinear
from .mechanism.scores import Dot as Dot
from .mechanism.scores import GraphAttention as GraphAttention
from .mechanism.scores import GraphAttentionV2 as GraphAttentionV2
from .mechanism.scores import ScaledDot as ScaledDot
from .models.image_attention import ImageSelfAttention as ImageSelfAttention
from .monitoring.monitor import Monitor as Monitor
from .monitoring.monitor import monitor as monitor
from .monitoring.trainer import MonitorCallback as MonitorCallback
from .traces import Trace as Trace
from .traces import from_queries_keys as from_queries_keys
from .traces import from_weights as from_weights
from .traces import open as open
from .traces import trace as trace
from .traces import watch as watch
from .version import __version__ as __version__
