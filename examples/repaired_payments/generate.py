"""Generate synthetic card payments, of which one in fifty is bad, of five kinds in turn. No card is real.

Writes ``CARD PAYMENT`` lines, the payment as JSON. With ``--clean`` each line is what it should have been. The same
seed produces the same lines.
"""

import argparse
import json
import random
from collections.abc import Iterator

COUNT = 2_000
BAD_IN = 50
KINDS = ("new currency", "cut off", "amount as text", "no currency", "amount of another system")


def payments(seed: int) -> Iterator[dict[str, object]]:
    """What each payment should have been. A bad one in a new currency is right."""
    chosen = random.Random(seed)
    for number in range(COUNT):
        currency = "CHF" if kind_of(number) == "new currency" else "EUR"
        card = f"card-{chosen.randrange(24):02}"
        yield {"id": number, "card": card, "cents": chosen.randrange(100, 20_000), "currency": currency}


def kind_of(number: int) -> str | None:
    """What is wrong with a payment; None: nothing."""
    return KINDS[number // BAD_IN % len(KINDS)] if number % BAD_IN == BAD_IN - 1 else None


def sent(payment: dict[str, object], kind: str | None) -> str:
    """The payment as its producer sent it."""
    match kind:
        case "cut off":
            return json.dumps(payment)[:-1]
        case "amount as text":
            return json.dumps(payment | {"cents": str(payment["cents"])})
        case "no currency":
            return json.dumps({name: value for name, value in payment.items() if name != "currency"})
        case "amount of another system":
            # In units of a hundred-millionth.
            return json.dumps(payment | {"cents": int(str(payment["cents"])) * 10**8})
    return json.dumps(payment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clean", action="store_true")
    asked = parser.parse_args()
    for payment in payments(asked.seed):
        kind = None if asked.clean else kind_of(int(str(payment["id"])))
        print(payment["card"], sent(payment, kind))


if __name__ == "__main__":
    main()
