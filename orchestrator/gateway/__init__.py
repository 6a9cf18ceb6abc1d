"""A gateway: programs that we did not write, and Agent SDK workers, spend under the same caps as everything else.

It speaks the Anthropic API on loopback and passes it on byte for byte. ``Gateway`` is what others use, with a
``Lease`` for each client; ``exchange`` is the life of one request, on the same ``metering`` as in process.
"""

from .gateway import Gateway
from .lease import Figures, Lease
from .limits import Limits
from .tokens import Token, Tokens
from .upstream import Upstream

__all__ = ["Figures", "Gateway", "Lease", "Limits", "Token", "Tokens", "Upstream"]
