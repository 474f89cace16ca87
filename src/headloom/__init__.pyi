"""The face of headloom: the one list of its public names; `headloom/__init__.py` loads each at
first use.

A name that is imported here is `headloom.NAME`, in `headloom.__all__`, known to type checkers and
tested.
"""

from .analysis.alignment.align import Alignment as Alignment
from .analysis.alignment.links import ErrorRate as ErrorRate
from .analysis.alignment.links import alignment_error_rate as alignment_error_rate
from .analysis.compare import Comparison as Comparison
from .analysis.image_map import ImageMap as ImageMap
from .analysis.monitor.monitor import Monitor as Monitor
from .analysis.monitor.monitor import monitor as monitor
from .analysis.monitor.trainer import MonitorCallback as MonitorCallback
from .analysis.sql.query import query as query
from .api.comparing import compare as compare
from .api.doctor import doctor as doctor
from .api.heads import heads as heads
from .api.loaded_model import LoadedModel as LoadedModel
from .api.loaded_model import from_huggingface as from_huggingface
from .api.measures import measure as measure
from .api.steps import steps as steps
from .api.trace import Trace as Trace
from .api.trace import from_edges as from_edges
from .api.trace import from_queries_keys as from_queries_keys
from .api.trace import from_weights as from_weights
from .api.trace import open as open
from .api.trace import trace as trace
from .api.trace import watch as watch
from .api.word_alignment import align as align
from .errors import BackendError as BackendError
from .errors import DataError as DataError
from .errors import HeadloomError as HeadloomError
from .errors import InputError as InputError
from .errors import ShapeError as ShapeError
from .errors import VerificationError as VerificationError
from .formats.head import Head as Head
from .formats.history import History as History
from .formats.pharaoh import read_pharaoh as read_pharaoh
from .formats.trace import TraceLayer as TraceLayer
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
from .mechanism.masks import packed as packed
from .mechanism.masks import padding as padding
from .mechanism.masks import window as window
from .mechanism.matrix.attention_matrix import AttentionMatrix as AttentionMatrix
from .mechanism.multihead import MultiHeadAttention as MultiHeadAttention
from .mechanism.positions import ALiBi as ALiBi
from .mechanism.positions import Buckets as Buckets
from .mechanism.positions import Shaw as Shaw
from .mechanism.positions import alibi_slopes as alibi_slopes
from .mechanism.positions import sinusoidal as sinusoidal
from .mechanism.received import LastQueries as LastQueries
from .mechanism.rotary import RotaryScaling as RotaryScaling
from .mechanism.rotary import rotary as rotary
from .mechanism.scores import Additive as Additive
from .mechanism.scores import Bilinear as Bilinear
from .mechanism.scores import Dot as Dot
from .mechanism.scores import GraphAttention as GraphAttention
from .mechanism.scores import GraphAttentionV2 as GraphAttentionV2
from .mechanism.scores import ScaledDot as ScaledDot
from .mechanism.scores import Score as Score
from .models.image_attention import ImageSelfAttention as ImageSelfAttention
from .version import __version__ as __version__
