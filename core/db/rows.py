"""Type aliases of rows and queries whose columns the type checkers need not know."""

from __future__ import annotations

from typing import Any, TypeAlias

from sqlalchemy import Row, Select

AnyRow: TypeAlias = Row[*tuple[Any, ...]]
AnySelect: TypeAlias = Select[*tuple[Any, ...]]
