"""Compare alerts with the generated anomalies, and with a recount of every window in plain Python.

Reads the alerts from stdin, one JSON object per line. Anomalies that no alert reports are missed; alerts themselves are
lost, repeated, or wrong: torn, of another window, or of a part of its payments.
"""

import argparse
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import Any

from examples.payments.generate import Anomaly, Payment, Stream
from examples.program import difference, lines, objects, run

WINDOW = timedelta(minutes=10)
LATE = timedelta(minutes=10)
BURST = timedelta(minutes=1)
MANY, TIMES_USUAL = 12, 10

Alert = tuple[str, str, datetime, int, int]
"""Card, reason, begin of the window, number of payments, largest amount."""


def expected(payments: list[Payment]) -> list[Alert]:
    """The rules of the pipeline once more, for all windows that the watermark has passed."""
    windows: dict[tuple[str, datetime], list[int]] = defaultdict(list)
    for payment in payments:
        since = payment.at.replace(minute=payment.at.minute // 10 * 10, second=0)
        windows[payment.card, since].append(payment.cents)
    watermark = max(payment.at for payment in payments) - LATE
    alerts: list[Alert] = []
    for (card, since), amounts in windows.items():
        *others, largest = sorted(amounts)
        if since + WINDOW > watermark:
            continue
        if len(amounts) >= MANY:
            alerts.append((card, "many payments", since, len(amounts), largest))
        elif len(amounts) >= 3 and largest * len(others) > TIMES_USUAL * sum(others):
            alerts.append((card, "large amount", since, len(amounts), largest))
    return sorted(alerts)


def alert_of(alert: dict[str, Any]) -> Alert | None:
    """None: it is no alert."""
    try:
        since = datetime.fromisoformat(alert["since"])
        return alert["card"], alert["reason"], since, alert["payments"], alert["largest"]
    except (KeyError, TypeError, ValueError):
        return None


def reports(alert: Alert, anomaly: Anomaly) -> bool:
    card, reason, since, *_ = alert
    return (card, reason) == (anomaly.card, anomaly.reason) and since - BURST < anomaly.at < since + WINDOW


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    stream = Stream(parser.parse_args().seed)
    parsed, torn = objects(lines())
    alerts = Counter(alert_of(each) for each in parsed) + Counter({None: torn})
    wanted: Counter[Alert | None] = Counter(expected(stream.payments))
    missed = [each for each in stream.anomalies if not any(alert and reports(alert, each) for alert in alerts)]
    lost, repeated, wrong = difference(wanted, alerts)
    print(
        f"{len(stream.anomalies)} anomalies, {alerts.total()} alerts: "
        f"{len(missed)} missed, {lost} lost, {repeated} repeated, {wrong} wrong"
    )
    for each in (*missed, *(wanted - alerts), *(alerts - wanted)):
        print(each or "no alert, or a torn one")
    return 1 if missed or lost or repeated or wrong else 0


if __name__ == "__main__":
    run(main)
