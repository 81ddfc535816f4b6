"""Records say what the tables hold: a column that is added, renamed or made nullable is so in both."""

from __future__ import annotations

from types import UnionType
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from sqlalchemy import Table

from uvsdk_server.deletions import Deletion
from uvsdk_server.keys import HpkeKey
from uvsdk_server.store import rows, schema
from uvsdk_server.store.roster import DeviceRow
from uvsdk_server.tokens import Token


@pytest.mark.parametrize(
    ("record", "table"),
    [
        (rows.DeploymentRow, schema.deployment),
        (rows.Model, schema.models),
        (rows.Round, schema.rounds),
        (rows.Member, schema.cohort),
        (rows.Receipt, schema.uploads),
        (DeviceRow, schema.devices),
        (Token, schema.tokens),
        (HpkeKey, schema.server_keys),
        (Deletion, schema.deletions),
    ],
)
def test_a_record_has_the_columns_of_its_table_and_their_types(record: type, table: Table) -> None:
    columns = {
        column.name: {column.type.python_type} | ({type(None)} if column.nullable else set()) for column in table.c
    }
    assert {name: _types(hint) for name, hint in get_type_hints(record).items()} == columns


def _types(hint: object) -> set[type]:
    if get_origin(hint) is UnionType:
        return set[type]().union(*map(_types, get_args(hint)))
    if get_origin(hint) is Literal:
        return {type(value) for value in get_args(hint)}
    assert isinstance(hint, type)
    return {hint}
