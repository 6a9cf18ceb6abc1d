"""The list of what is allowed covers everything that the installed SDK can send."""

from __future__ import annotations

import importlib
import pkgutil
import typing
from pathlib import Path
from typing import Any, get_args

import pytest
from anthropic import types
from anthropic.types import beta
from anthropic.types.beta import message_count_tokens_params as beta_count
from anthropic.types.beta import message_create_params as beta_create
from typing_extensions import get_type_hints, is_typeddict

from orchestrator.wire import fields


def _union_types(union: Any, *, seen: set[str] | None = None) -> set[str]:
    """Every value that ``type`` can have in a union of TypedDicts or models."""
    found = set() if seen is None else seen
    for member in get_args(union) or (union,):
        if typing.get_origin(member) in {typing.Union, typing.Annotated}:
            _union_types(member, seen=found)
            continue
        if is_typeddict(member):
            hint = get_type_hints(member).get("type")
        else:
            described = getattr(member, "model_fields", {}).get("type")
            hint = described.annotation if described else None
        found |= {one for one in _literals(hint) if isinstance(one, str)}
    return found


def _literals(hint: Any) -> set[Any]:
    if typing.get_origin(hint) is typing.Literal:
        return set(get_args(hint))
    return set().union(*(_literals(one) for one in get_args(hint)), set())


@pytest.mark.parametrize("module", [types.message_create_params, beta_create], ids=["ga", "beta"])
def test_every_request_field_of_the_sdk_is_known(module: Any) -> None:
    """A field that the SDK gained must be read and listed before it can be sent."""
    known = fields.PLAIN_FIELDS | fields.RULED_FIELDS
    named: set[str] = set()
    for params in get_args(module.MessageCreateParams):
        named |= set(get_type_hints(params))
    assert named - known == set()


@pytest.mark.parametrize(
    "union", [types.ToolUnionParam, beta.BetaToolUnionParam], ids=["ga", "beta"]
)
def test_every_tool_type_of_the_sdk_is_known(union: Any) -> None:
    """A tool that the SDK gained must be given a family before it can be sent."""
    named = _union_types(union)
    assert len(named) > 15
    assert named - set(fields.TOOL_TYPES) == set()


def test_every_tool_type_has_a_family_and_room() -> None:
    """The table holds only plausible names, each with room for its hidden definition."""
    for kind, (family, overhead) in fields.TOOL_TYPES.items():
        assert family in typing.get_args(fields.Family)
        assert kind == "custom" or overhead >= 1_000


@pytest.mark.parametrize(
    "union",
    [types.ContentBlockParam, beta.BetaContentBlockParam],
    ids=["ga", "beta"],
)
def test_every_content_block_of_the_sdk_is_known(union: Any) -> None:
    """A block that the SDK gained is held at the context window until it is listed here."""
    known = fields.TEXT_BLOCKS | fields.NESTING_BLOCKS | fields.RULED_BLOCKS
    named = _union_types(union)
    assert len(named) > 10
    assert named - known == set()


def test_every_block_inside_a_tool_result_is_known() -> None:
    """What tool results can hold is read too (images in them were once counted as nothing)."""
    from anthropic.types.beta.beta_tool_result_block_param import Content

    known = fields.TEXT_BLOCKS | fields.NESTING_BLOCKS | fields.RULED_BLOCKS
    assert _union_types(Content) - known == set()


def test_every_edit_of_the_sdk_is_known() -> None:
    """A context edit that the SDK gained may sample, so it must be read first."""
    from anthropic.types.beta.beta_context_management_config_param import Edit

    assert _union_types(Edit) - (fields.FREE_EDITS | fields.COMPACTING_EDITS) == set()


def test_fallback_and_output_settings_of_the_sdk_are_known() -> None:
    """Nested settings are on the list as well."""
    assert set(get_type_hints(beta.BetaFallbackParam)) - fields.FALLBACK_FIELDS == set()
    for config in (types.OutputConfigParam, beta.BetaOutputConfigParam):
        assert set(get_type_hints(config)) - fields.OUTPUT_CONFIG_FIELDS == set()


@pytest.mark.parametrize(
    "params",
    [types.MessageCountTokensParams, beta_count.MessageCountTokensParams],
    ids=["ga", "beta"],
)
def test_what_is_counted_is_taken_by_the_token_counter(params: Any) -> None:
    """The token counter refuses a body with fields that it does not have."""
    assert fields.COUNTABLE_FIELDS - set(get_type_hints(params)) == set()


def test_the_wire_imports_no_sdk_and_no_http() -> None:
    """Shapes can be read where no SDK is installed."""
    import orchestrator.wire as package

    for module in pkgutil.iter_modules(package.__path__):
        source = importlib.util.find_spec(f"orchestrator.wire.{module.name}")
        assert source is not None
        assert source.origin is not None
        text = Path(source.origin).read_text(encoding="utf-8")
        assert "import anthropic" not in text
        assert "from anthropic" not in text
        assert "httpx" not in text
