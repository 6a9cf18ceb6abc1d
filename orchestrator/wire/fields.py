"""What is known of the Messages API: fields, tools and blocks that have a bound, by name.

This is the one list of what is allowed (rule 3). A name that is missing here is declined by name,
so that a new field of the provider can't cost money before somebody has read what it costs.
``test_wire_fields`` fails when the installed SDK knows a name that this file does not.
"""

from __future__ import annotations

from typing import Final, Literal

#: Where a tool's cost comes from.
Family = Literal[
    "client",
    "web_search",
    "web_fetch",
    "code_execution",
    "tool_search",
    "advisor",
    "mcp",
]

#: Fields that cost nothing by themselves: text (bounded by its bytes), limits, and settings.
PLAIN_FIELDS: Final = frozenset(
    {
        "model",
        "messages",
        "max_tokens",
        "system",
        "tools",
        "tool_choice",
        "stream",
        "stop_sequences",
        "metadata",
        "thinking",
        "output_config",
        "output_format",
        "cache_control",
        "diagnostics",
        "service_tier",
        "inference_geo",
        "speed",
        # API version 2023-06-01 still takes them; the CLI and older programs send them.
        "temperature",
        "top_p",
        "top_k",
        # Who pays. If it is somebody else, the hold is merely too large.
        "billing_policy",
        "user_profile_id",
        "workspace_id",
        # Makes a retry cheaper, never dearer.
        "fallback_credit_token",
        "betas",
    }
)

#: Fields that cause further inference or server-side work; each is read by a rule of its own.
RULED_FIELDS: Final = frozenset(
    {
        "thread",
        "fallbacks",
        "context_management",
        "compaction",
        "container",
        "mcp_servers",
    }
)

OUTPUT_CONFIG_FIELDS: Final = frozenset({"effort", "format", "task_budget"})

#: Fields of a fallback entry; the provider refuses any other.
FALLBACK_FIELDS: Final = frozenset({"model", "max_tokens", "thinking", "output_config", "speed"})

#: Edits that only drop old content: no inference of their own.
FREE_EDITS: Final = frozenset({"clear_tool_uses_20250919", "clear_thinking_20251015"})
COMPACTING_EDITS: Final = frozenset({"compact_20260112"})
#: Input tokens at which the provider compacts when the request names no trigger.
COMPACTION_TRIGGER: Final = 150_000

#: Every tool type that is known, with its family and the input tokens that its hidden definition
#: may take, generously (a client tool of the provider, such as ``bash``, is one line of JSON here
#: and hundreds of tokens of prompt there).
TOOL_TYPES: Final[dict[str, tuple[Family, int]]] = {
    "custom": ("client", 64),
    "bash_20241022": ("client", 2_048),
    "bash_20250124": ("client", 2_048),
    "text_editor_20241022": ("client", 2_048),
    "text_editor_20250124": ("client", 2_048),
    "text_editor_20250429": ("client", 2_048),
    "text_editor_20250728": ("client", 2_048),
    "memory_20250818": ("client", 4_096),
    "computer_20241022": ("client", 4_096),
    "computer_20250124": ("client", 4_096),
    "computer_20251124": ("client", 4_096),
    # Toolsets bring some thirty tools each.
    "computer_toolset_20260801": ("client", 16_384),
    "browser_toolset_20260801": ("client", 16_384),
    "web_search_20250305": ("web_search", 4_096),
    "web_search_20260209": ("web_search", 8_192),
    "web_search_20260318": ("web_search", 8_192),
    "web_fetch_20250910": ("web_fetch", 4_096),
    "web_fetch_20260209": ("web_fetch", 8_192),
    "web_fetch_20260309": ("web_fetch", 8_192),
    "web_fetch_20260318": ("web_fetch", 8_192),
    "code_execution_20250522": ("code_execution", 8_192),
    "code_execution_20250825": ("code_execution", 8_192),
    "code_execution_20260120": ("code_execution", 8_192),
    "code_execution_20260521": ("code_execution", 8_192),
    "tool_search_tool_bm25": ("tool_search", 2_048),
    "tool_search_tool_bm25_20251119": ("tool_search", 2_048),
    "tool_search_tool_regex": ("tool_search", 2_048),
    "tool_search_tool_regex_20251119": ("tool_search", 2_048),
    "advisor_20260301": ("advisor", 4_096),
    "mcp_toolset": ("mcp", 2_048),
}

#: Web tools that run code on the server to filter their results, unless only called directly.
FILTERING_TOOLS: Final = frozenset(
    {
        "web_search_20260209",
        "web_search_20260318",
        "web_fetch_20260209",
        "web_fetch_20260309",
        "web_fetch_20260318",
    }
)

#: Content blocks that are text through and through, so that their bytes bound their tokens.
TEXT_BLOCKS: Final = frozenset(
    {
        "text",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "server_tool_use",
        "mcp_tool_use",
        "search_result",
        "web_search_tool_result",
        "tool_search_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "advisor_tool_result",
        "mcp_tool_listing",
        "tool_removal",
        "tool_reference",
        "browser_state",
        "fallback",
    }
)

#: Blocks whose ``content`` holds blocks again (an image inside a tool result, say).
NESTING_BLOCKS: Final = frozenset(
    {
        "tool_result",
        "mcp_tool_result",
        "web_fetch_tool_result",
        "web_fetch_result",
    }
)

#: Blocks that a rule of their own reads.
RULED_BLOCKS: Final = frozenset(
    {
        "image",
        "document",
        "tool_addition",
        "compaction",
        "container_upload",
    }
)

#: What ``count_tokens`` takes. ``context_management`` is left out on purpose: the count before
#: anything is cleared is the larger one.
COUNTABLE_FIELDS: Final = frozenset(
    {
        "model",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "speed",
        "cache_control",
    }
)
