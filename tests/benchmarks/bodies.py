"""How many messages a core reads for a book a second: ``python -m tests.benchmarks.bodies``.

Messages as Qpid JMS sends them, with header, annotations, properties and application properties; of each the key and an
amount are picked. Beside it, the same through Spark, on one core, once the messages are in its memory.
"""

from __future__ import annotations

import json
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark.books.description import BookDescription
from spark.picking import pick, picker
from spark.session import open_session
from tests.wire import types
from tests.wire.messages import APPLICATION_PROPERTIES, VALUE, Header, Properties, data, section

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_BATCH: Final = 10_000
_TIMES: Final = 7


def _head(number: int) -> bytes:
    return (
        Header(durable=True, priority=types.UByte(4)).encoded()
        + section(
            0x72, {types.Symbol("x-opt-jms-dest"): types.Byte(0), types.Symbol("x-opt-jms-msg-type"): types.Byte(5)}
        )
        + Properties(
            message_id=f"ID:9d1c3b8e-7c55-4c11-9cf5-a11d5e0a0f3e:1:1:1-{number}",
            to="orders",
            creation_time=types.Timestamp(1_760_000_000_000 + number),
        ).encoded()
        + section(APPLICATION_PROPERTIES, {"order-id": f"A-{number}", "tenant": "north"})
    )


def _order(number: int) -> dict[str, Any]:
    return {
        "order_id": f"A-{number}",
        "customer": f"customer {number % 977}",
        "amount": f"{number / 100:.2f}",
        "currency": "EUR",
        "lines": [{"sku": "x-1", "count": types.Int(2)}, {"sku": "y-7", "count": types.Int(1)}],
        "placed": types.Timestamp(1_760_000_000_000 + number),
        "paid": True,
    }


def _json(number: int) -> bytes:
    return json.dumps({**_order(number), "amount": number / 100}).encode()


def _decimal(number: int) -> types.Decimal:
    """``number`` hundredths, as a decimal64."""
    return types.Decimal(((398 - 2) << 53 | number).to_bytes(8, "big"))


#: Of each shape: the body, the key, and the amount.
SHAPES: Final[dict[str, tuple[Callable[[int], bytes], str, str]]] = {
    "JSON in data": (lambda number: data(_json(number)), "body:$.order_id", "body:$.amount"),
    "JSON in a string": (lambda number: section(VALUE, _json(number).decode()), "body:$.order_id", "body:$.amount"),
    "AMQP map": (lambda number: section(VALUE, _order(number)), "body:$.order_id", "body:$.amount"),
    "AMQP string": (lambda number: section(VALUE, f"{Decimal(number) / 100}"), "property:order-id", "body:$"),
    "AMQP long": (lambda number: section(VALUE, types.Long(number)), "property:order-id", "body:$"),
    "AMQP decimal": (lambda number: section(VALUE, _decimal(number)), "property:order-id", "body:$"),
}


def messages(shape: str) -> list[bytes]:
    body = SHAPES[shape][0]
    return [_head(number) + body(number) for number in range(_BATCH)]


def _alone(batch: pa.Array, key: str, amount: str) -> float:
    """Messages a second of processor time, the best of some."""
    run = picker(key, [amount])
    best = float("inf")
    for _ in range(_TIMES):
        start = time.process_time()
        found = run(batch)
        best = min(best, time.process_time() - start)
    assert found[-1].as_py()["problem"] is None
    return len(batch) / best


def _through_spark(spark: SparkSession, batch: list[bytes], key: str, amount: str) -> float:
    rows = spark.createDataFrame(
        [(number, 1, octets) for number, octets in enumerate(batch)], "id long, address_id int, message binary"
    )
    many = rows.crossJoin(spark.range(30).withColumnRenamed("id", "copy")).drop("copy").coalesce(1).cache()
    count = many.count()
    book = BookDescription.model_validate(
        {"name": "b", "format": "csv", "key": "k", "message_key": key, "time": "t", "addresses": ["a"],
         "committed_when": "true", "equal": [{"column": "c", "message": amount}]}
    )  # fmt: skip
    best = float("inf")
    for _ in range(3):
        start = time.monotonic()
        pick(book, many).write.format("noop").mode("overwrite").save()
        best = min(best, time.monotonic() - start)
    many.unpersist()
    return count / best


def main() -> None:
    spark = open_session("local[1]", memory="2g")
    print(f"{'messages a second and core':28}{'octets':>8}{'picked':>12}{'through Spark':>16}")
    for shape, (_, key, amount) in SHAPES.items():
        batch = messages(shape)
        alone = _alone(pa.array(batch, pa.binary()), key, amount)
        print(f"{shape:28}{len(batch[-1]):8}{alone:12,.0f}{_through_spark(spark, batch, key, amount):16,.0f}")
    spark.stop()


if __name__ == "__main__":
    main()
