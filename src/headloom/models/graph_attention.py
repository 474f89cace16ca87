"""Graph attention network: attention over neighbours; the last layer scores the classes.

    h^(l+1)_i = || over heads k of ELU(sum_{j in N(i) and i} w^k_ij W^k h^(l)_j)     hidden layers
    logits_i  = mean over heads k of    sum_{j in N(i) and i} w^k_ij W^k h_j         the last layer

Source: Velickovic et al. 2018, sections 2.1 and 3.3; Brody et al. 2022 for version 2.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import elu

from headloom.errors import InputError
from headloom.mechanism.graph_convolution import GATConv, GATv2Conv, check_features
from headloom.mechanism.multihead import WeightsKind
from headloom.models.arguments import by_name
from headloom.models.dense import Dropout
from headloom.models.predictor import Predictor


class GraphAttentionNetwork(Predictor):
    """Graph attention network: scores the class of every node of a graph.

    Args:
        features: width of a node's features.
        classes: number of classes.
        layers: attention layers, the last one included.
        width: of a hidden layer, a multiple of its heads.
        heads: of a hidden layer, concatenated.
        output_heads: of the last layer, averaged.
        version: of the score: 1 as `headloom.GATConv`, 2 as `headloom.GATv2Conv`.
        dropout: probability that an input of a layer is set to 0 in training.
        attention_dropout: likewise for a normalised weight.
        residual: whether hidden layers after the first add their input to their output.
        weights: "uniform": the score's vectors are fixed at 0, so that every node takes the mean of
            its neighbours: the baseline without attention.

    >>> import torch
    >>> network = GraphAttentionNetwork(features=5, classes=3, width=16, heads=4).eval()
    >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])     # sources over targets
    >>> network(torch.randn(4, 5), edge_index).shape
    torch.Size([4, 3])
    """

    purpose = "classifies the nodes of a graph (headloom evaluate, headloom trace)"

    @by_name()
    def __init__(
        self,
        features: int,
        classes: int,
        *,
        width: int = 64,
        heads: int = 8,
        layers: int = 2,
        output_heads: int = 1,
        version: Literal[1, 2] = 1,
        dropout: float = 0.6,
        attention_dropout: float = 0.6,
        residual: bool = False,
        weights: WeightsKind = "learned",
    ) -> None:
        super().__init__()
        if width % heads:
            raise InputError(
                f"model.width {width} does not split into {heads} heads. Choose a multiple."
            )
        kind, depth = GATConv if version == 1 else GATv2Conv, width // heads
        widths = [features, *[width] * (layers - 1)]
        self.convolutions = nn.ModuleList(
            kind(width, depth, heads=heads, dropout=attention_dropout) for width in widths[:-1]
        )
        self.convolutions.append(
            kind(widths[-1], classes, heads=output_heads, concat=False, dropout=attention_dropout)
        )
        self.features, self.residual = features, residual
        self.dropout = Dropout(dropout)
        if weights == "uniform":
            for name, parameter in self.named_parameters():
                if name.rpartition(".")[2].startswith("att"):
                    nn.init.zeros_(parameter)
                    parameter.requires_grad_(False)

    def outputs(self, features: Tensor, edge_index: Tensor) -> Tensor:
        """Score the classes, (nodes, classes); see `forward`."""
        check_features("GraphAttentionNetwork", "features", features, self.features)
        hidden = features
        for number, convolution in enumerate(self.convolutions[:-1]):
            result = elu(convolution(self.dropout(hidden), edge_index))
            hidden = hidden + result if self.residual and number > 0 else result
        scores: Tensor = self.convolutions[-1](self.dropout(hidden), edge_index)
        return scores

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the outputs unchanged: the last layer gives the scores."""
        return outputs

    def forward(self, features: Tensor, edge_index: Tensor) -> Tensor:
        """Score the classes of every node.

        Args:
            features: (nodes, features).
            edge_index: ids of nodes, (2, edges), sources over targets; self-loops are added.

        Returns: logits, (nodes, classes).
        """
        return self.outputs(features, edge_index)
