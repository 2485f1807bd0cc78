"""The ingester of the campaign: ``python -m tests.ingest.postgresql.campaign_ingester BOOTSTRAP PORT DATABASE``."""

from __future__ import annotations

import sys
from contextlib import closing

from einmal.client.errors import KafkaError
from einmal.ingest import Ingest, IngestStopped, SourceNotice
from einmal.ingest.postgresql.source import PostgresSource
from tests.ingest.postgresql.capture import options

NAME = "campaign"


def main() -> None:
    bootstrap, port, database = sys.argv[1:]

    def notify(notice: SourceNotice) -> None:
        print(f"{notice.kind}: {notice.text}", flush=True)

    with closing(PostgresSource(options(int(port), database, max__batch__size=300))) as source:
        try:
            Ingest(source, bootstrap_servers=bootstrap, name=NAME, notify=notify).run()
        except (IngestStopped, KafkaError) as error:
            sys.exit(f"stopped: {error}")


if __name__ == "__main__":
    main()
