"""Compare alerts with the generated anomalies. Reads the alerts from stdin, one JSON object per line."""

import argparse
import json
import sys
from datetime import datetime, timedelta

from examples.payments.generate import Anomaly, Stream

WINDOW = timedelta(minutes=10)
BURST = timedelta(minutes=1)


def reports(alert: dict[str, str], anomaly: Anomaly) -> bool:
    since = datetime.fromisoformat(alert["since"])
    is_then = since - BURST < anomaly.at < since + WINDOW
    return is_then and (alert["card"], alert["reason"]) == (anomaly.card, anomaly.reason)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    stream = Stream(parser.parse_args().seed)
    alerts = [json.loads(line) for line in sys.stdin]
    missed = [each for each in stream.anomalies if not any(reports(alert, each) for alert in alerts)]
    wrong = [alert for alert in alerts if not any(reports(alert, each) for each in stream.anomalies)]
    print(f"{len(stream.anomalies)} anomalies, {len(alerts)} alerts: {len(missed)} missed, {len(wrong)} wrong")
    for each in (*missed, *wrong):
        print(each)
    sys.exit(1 if missed or wrong else 0)


if __name__ == "__main__":
    main()
