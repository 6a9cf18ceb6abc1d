"""Shared prefixes are cached without being asked: marked where that pays, warmed by one call, accounted for."""

from .accounts import CachingReport
from .middleware import Prefixes
from .sharing import sharing, split_shared

__all__ = ["CachingReport", "Prefixes", "sharing", "split_shared"]
