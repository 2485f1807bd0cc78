# Everything needs only Python 3.11+ and make. `make help` lists the targets.
PYTHON ?= python3
# Another release of Spark has an environment of its own.
SPARK ?=
VENV := $(if $(SPARK),build/spark-$(SPARK)-venv,.venv)
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COMPILED := $(VENV)/.compiled
NATIVE := $(VENV)/.native
# The tests of the modules that mypyc compiles: they run on both.
BOTH := tests/wire tests/log tests/compiled tests/client/cores/test_producer_core.py tests/client/cores/test_consumer_core.py \
  tests/client/cores/test_record_router.py tests/client/cores/test_fetched.py
# The site has an environment of its own: no test needs it.
DOCS := build/docs-venv
DOCS_READY := $(DOCS)/.ready
MERMAID := build/mermaid/mermaid.min.js
MERMAID_VERSION := 11.17.2
MERMAID_SHA256 := 581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8
PYTEST := $(BIN)/python -m pytest -q -n auto
FAST := not (spark or interop or system or slow or long)
COMPILE := uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --allow-unsafe
INSTALL = sh tools/install.sh $(BIN)
START ?= 0
KILLS ?= 300
CUTS ?= 12
SOURCE ?= einmal
TARGET ?= einmal
NODES ?= 1
CLUSTER ?= einmal
CLUSTERS ?= einmal
TARGETS ?=
ROWS ?= 1000000
PAIRS ?= 100000
FRAMES ?= 1000000
SEED ?= 20264
SHARD ?=
BASE ?= HEAD
MUTANTS ?= 60
# Without bytecode caches each of the many processes of the tests would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo check test static fast-tests tests test-changed durations test-long fix docs bench \
  bench-beside bench-java bench-pipeline bench-postgres bench-mirror failover kills pipeline-kills format-kills network-cuts yarn-kills postgres-kills bank-kills \
  target-kills mirror-kills cdc-kills ingest-kills bad-row-kills standalone fuzz formats simulate simulate-determinism mutants requirements clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(READY) $(NATIVE)  ## create the virtual environment, every package pinned by hash

$(READY): requirements/build.txt requirements/dev.txt $(SPARK:%=requirements/spark-%.txt) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "einmal needs Python 3.11 or newer; name one with: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/build.txt
	@$(INSTALL) -r requirements/dev.txt
	$(if $(SPARK),@$(INSTALL) --no-deps -r requirements/spark-$(SPARK).txt)
	EINMAL_PURE=1 $(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $(READY)

# The hot modules as machine code, again after a change of a source that they depend on. The demo does without.
$(NATIVE): $(READY) tools/compile_modules.py $(wildcard $(shell cut -d ' ' -f 3 build/compiled/*/sources 2> /dev/null))
	@$(BIN)/python -m tools.compile_modules > /dev/null || echo "not compiled: the hot modules run interpreted" >&2
	@touch $(NATIVE)

# Or each of the many processes that begin at once would compile every module, and each worker of a test run rewrite every
# assertion. The demo, which starts few, is over sooner without.
$(COMPILED): $(READY) | $(NATIVE)
	@$(BIN)/python -m compileall -q -j 0 -x 'site-packages/.*/tests/' $(VENV)/lib src tests tools || true
	@$(PYTEST) -n 0 --collect-only > /dev/null & \
	  $(BIN)/python -W ignore -m einmal.spark.environment.class_archive || echo "no archive of Spark's classes: its sessions start slower" >&2; \
	  wait
	@touch $(COMPILED)

$(DOCS_READY): requirements/docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $(DOCS_READY)

demo: $(READY)  ## send real text through brokers and a Spark pipeline while they are killed
	$(BIN)/einmal demo

# The type checker, which uses one processor, runs beside the compiler, too.
check: $(READY)  ## format, lint, types, import contracts, retired words, fast tests
	@$(MAKE) --no-print-directory -j 2 static fast-tests

test: $(READY)  ## what `check` does, then other clients, Apache Kafka, kills and Spark, in one run
	@$(MAKE) --no-print-directory -j 2 static tests

static: $(READY)
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/lint-imports
	$(BIN)/python -m tools.check_words
	$(BIN)/mypy

# They compute rather than wait, and each worker collects them first: two for each processor.
fast-tests: $(COMPILED)
	EINMAL_PURE=1 $(PYTEST) -n 4 -m "$(FAST)"
	$(PYTEST) -n 4 -m "$(FAST)" $(BOTH)

tests: $(COMPILED)
	$(PYTEST) -m "not long" $(SHARD:%=--shard %)
	EINMAL_PURE=1 $(PYTEST) -m "$(FAST)" $(BOTH)

# What has changed of the hot modules runs interpreted: to compile it first would take as long as the tests.
test-changed: $(READY)  ## the tests that a change since BASE=HEAD can affect, the nearest first, in a minute
	@test -f $(COMPILED) || $(MAKE) --no-print-directory $(COMPILED)
	@files=$$($(BIN)/python -m tools.changed_tests --base $(BASE)) && { test -z "$$files" || $(PYTEST) -m "not long" $$files; }

durations: $(COMPILED)  ## record how long each test file takes, which the order of the tests follows
	$(PYTEST) -m "not long" --record-durations

test-long: $(COMPILED)  ## tests that take minutes: all variants, small campaigns, kills under a Spark cluster; SPARK=4.2: all Spark tests on 4.2
	$(BIN)/python -m pytest -q -n 2 -m $(if $(SPARK),spark,long)

fix: $(READY)  ## fix format and lint
	$(BIN)/ruff format -q .
	$(BIN)/ruff check -q --fix .

bench: $(READY) $(NATIVE)  ## measurements beside their targets
	$(BIN)/einmal bench

bench-beside: $(READY) $(NATIVE)  ## the same beside Apache Kafka, which Maven fetches: NODES=1 brokers of each; TLS=1: over TLS
	$(BIN)/python -W ignore -m tests.bench.beside_apache --brokers $(NODES) $(if $(TLS),--tls)

bench-java: $(READY) $(NATIVE)  ## Kafka's Java producer: rates and the price of exactly-once, beside Apache Kafka, which Maven fetches: NODES=1
	mvn -q -B -f tests/interop/kafka/pom.xml -Pperformance -DoutputDirectory=$(CURDIR)/build/kafka-performance \
	  dependency:copy-dependencies >&2
	$(BIN)/python -W ignore -m tests.bench.beside_apache --brokers $(NODES) client price --java build/kafka-performance

bench-pipeline: $(READY) $(NATIVE)  ## compare a pipeline with Spark's own Kafka connector, whose jars Maven fetches
	@mvn -q -B -f tests/spark/kafka_source/pom.xml -Pkafka-source -DoutputDirectory=$(CURDIR)/build/spark-kafka \
	  dependency:copy-dependencies >&2 && connector="--connector build/spark-kafka" \
	  || echo "no jars of Spark's own connector (Java and Maven fetch them): skipped" >&2; \
	  $(BIN)/einmal bench pipeline $$connector

failover: $(READY) $(NATIVE)  ## how long clients wait when a leader or a coordinator of three brokers is killed, 100 times each
	$(BIN)/einmal bench failover

kills: $(COMPILED)  ## 200 kill -9, then 80 stops and pauses, of three brokers under load, and the verdict with its figures; EINMAL_TLS=1: over TLS
	EINMAL_KILLS=280 $(BIN)/python -m pytest -q -s -p no:randomly -k three_brokers tests/system/test_failover.py

standalone: $(COMPILED)  ## the pipelines on a Spark cluster of processes: every fault for each of them, on both brokers
	EINMAL_STANDALONE=all $(BIN)/python -m pytest -q -p no:randomly tests/spark/test_standalone.py

pipeline-kills: $(COMPILED)  ## KILLS=300 kills, by SEED, of drivers, executors, Spark workers and CLUSTER's (einmal, apache) brokers under four pipelines
	$(BIN)/python -W ignore -m tests.spark.campaign --kills $(KILLS) --seed $(SEED) --cluster $(CLUSTER)

format-kills: $(COMPILED)  ## KILLS=300 kills, by SEED, of drivers, keepers, workers, executors and CLUSTER's brokers under four queries of format("einmal")
	$(BIN)/python -W ignore -m tests.spark.format_campaign --kills $(KILLS) --seed $(SEED) --cluster $(CLUSTER)

network-cuts: $(COMPILED)  ## CUTS=12 cuts, by SEED, of the network between a Spark driver and executors that write, in namespaces: needs root
	$(BIN)/python -W ignore -m tests.spark.network_campaign --kills $(CUTS) --seed $(SEED)

yarn-kills: $(COMPILED)  ## KILLS=300 kills, by SEED, of drivers, executors and Python workers in containers of YARN, which Maven fetches
	$(BIN)/python -W ignore -m tests.spark.yarn.campaign --kills $(KILLS) --seed $(SEED)

postgres-kills: $(COMPILED)  ## KILLS=300 kills, by SEED, of drivers, workers, sessions and the server under two pipelines into PostgreSQL
	$(BIN)/python -W ignore -m tests.sinks.postgres.campaign --kills $(KILLS) --seed $(SEED)

bench-postgres: $(READY) $(NATIVE)  ## compare PostgreSQL as a sink with Spark's JDBC sink, whose driver Maven fetches
	mvn -q -B -f tests/sinks/postgres/jdbc/pom.xml -DoutputDirectory=$(CURDIR)/build/jdbc \
	  dependency:copy-dependencies >&2
	$(BIN)/python -W ignore -m tests.sinks.postgres.bench --jdbc build/jdbc/postgresql-*.jar

ingest-kills: $(COMPILED)  ## KILLS=300 kills, by SEED, of an ingester, its broker and its database, under rotated files and a table with late commits
	$(BIN)/python -W ignore -m tests.ingest.campaign --kills $(KILLS) --seed $(SEED)

cdc-kills: $(COMPILED)  ## KILLS=300 kills, by SEED, of a PostgreSQL server, a broker and the ingester between them: row versions once, in commit order
	$(BIN)/python -W ignore -m tests.ingest.postgresql.campaign --kills $(KILLS) --seed $(SEED)

bank-kills: $(COMPILED)  ## KILLS=300 kills, by SEED, under a bank whose accounts are in a topic and in PostgreSQL: writer, broker, server
	$(BIN)/python -W ignore -m tests.system.bank.campaign --kills $(KILLS) --seed $(SEED)

target-kills: $(COMPILED)  ## KILLS=300 kills, by SEED, of drivers, executors and Python workers under a stream into each of TARGETS (default: all)
	$(BIN)/python -W ignore -m tests.sinks.campaign $(TARGETS:%=--target %) --kills $(KILLS) --seed $(SEED)

mirror-kills: $(COMPILED)  ## KILLS=300 kills, by SEED, of a mirror and of the NODES=1 brokers of SOURCE and TARGET (einmal, apache; 3 for leaderless partitions); PEER=1: MirrorMaker 2, too
	$(BIN)/python -W ignore -m tests.mirroring.campaign --kills $(KILLS) --seed $(SEED) \
	  --source $(SOURCE) --target $(TARGET) --nodes $(NODES) $(if $(PEER),--peer)

bench-mirror: $(READY) $(NATIVE)  ## MB/s of a mirror between two CLUSTERS=einmal (or apache), beside MirrorMaker 2, which Maven fetches
	$(BIN)/python -W ignore -m tests.mirroring.bench --clusters $(CLUSTERS)

bad-row-kills: $(COMPILED)  ## ROWS=1000000 rows, 1 % of them bad, KILLS=300 kills, by SEED: dead letters, replay, and the sink after it
	$(BIN)/python -W ignore -m tests.spark.bad_rows_campaign --rows $(ROWS) --kills $(KILLS) --seed $(SEED)

fuzz: $(COMPILED)  ## FRAMES=1000000 requests, by SEED, of every API against a live broker beside a client that measures its latency
	$(BIN)/python -W ignore -m tests.fuzz --frames $(FRAMES) --seed $(SEED) --keep build/fuzz

formats: $(COMPILED)  ## PAIRS=100000 random pairs of schemas, by SEED, of Avro and of Protobuf, decoded here and by their Java implementations
	$(BIN)/python -W ignore -m tests.schemas.beside_java --pairs $(PAIRS) --seed $(SEED)

simulate: export EINMAL_PURE = 1
simulate: $(READY)  ## 1,000 seeds each: a cluster, a broker alone, delayed requests, the pipeline's commit protocol, a mirror, an ingester
	$(BIN)/einmal simulate --workload cluster --seeds 1000 --start $(START)
	$(BIN)/einmal simulate --workload broker --seeds 1000 --start $(START)
	$(BIN)/einmal simulate --workload delayed --seeds 1000 --start $(START)
	$(BIN)/einmal simulate --workload pipeline --seeds 1000 --start $(START)
	$(BIN)/einmal simulate --workload mirror --seeds 1000 --start $(START)
	$(BIN)/einmal simulate --workload ingest --seeds 1000 --start $(START)

simulate-determinism: $(READY) $(NATIVE)  ## 1,000 seeds of the cluster compiled, and again interpreted: the same traces
	$(BIN)/einmal simulate --workload cluster --seeds 1000 --start $(START) --rerun

mutants: $(COMPILED)  ## MUTANTS=60 defects of the core machines, by SEED, against their own fast tests: score and survivors
	$(BIN)/python -m tests.mutation --count $(MUTANTS) --seed $(SEED) --jobs 2

# The site draws its diagrams itself: no reader's browser asks anybody else for a script.
$(MERMAID):
	@mkdir -p $(@D)
	@cd $(@D) && { npm pack --silent mermaid@$(MERMAID_VERSION) > /dev/null \
	  && tar -xzOf mermaid-$(MERMAID_VERSION).tgz package/dist/mermaid.min.js > mermaid.part \
	  && echo "$(MERMAID_SHA256)  mermaid.part" | sha256sum -c --quiet && mv mermaid.part $(@F); } \
	  || echo "no Mermaid (npm fetches it): the site shows the text of its diagrams" >&2

docs: $(DOCS_READY) $(MERMAID)  ## build the documentation site in build/site
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build -q

requirements:  ## compile requirements/*.txt again (needs uv)
	$(COMPILE) requirements/build.in -o requirements/build.txt
	$(COMPILE) pyproject.toml --extra spark --extra schemas --extra bench --extra oauth --extra postgres --extra duckdb \
	  --extra delta --extra iceberg --extra zstd --extra otel --extra chaos --group dev -o requirements/dev.txt
	$(COMPILE) --group docs -o requirements/docs.txt

clean:  ## remove the output of runs
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache $(NATIVE)
