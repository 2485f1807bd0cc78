"""One partition on disk, in Apache Kafka's own file formats. Synchronous; knows no network and no coordinator."""
