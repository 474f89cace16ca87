# Every target sets up what it needs by itself; the second time that costs nothing.
.PHONY: help setup setup-no-tools demo test test-all coverage check bench pictures docs wheel clean

python := .venv/bin/python
# Each module is compiled once, not anew by each process that imports it: scripts/setup leaves that to
# the first. Containers often set this, and loading torch takes twice the time then, an optimizer more.
unexport PYTHONDONTWRITEBYTECODE
# A file of tests stays in one process, long files first (tests/conftest.py); each worker computes on
# its share of the cores. There is one more than cores, up to 8: with a browser, a worker has nothing
# to compute for a third of the time.
workers ?= $(shell cores=$$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN); echo $$((cores < 8 ? cores + 1 : 8)))
parallel = -n $(workers) --dist loadfile --no-loadscope-reorder

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

setup:  ## .venv with torch, the native kernels and headloom itself
	@scripts/setup

setup-no-tools:
	@scripts/setup --no-tools

demo: setup-no-tools  ## the main job: train a translator of dates, test it, see what it looks at
	.venv/bin/headloom demo

test: setup  ## the tests, less the slow ones
	@scripts/setup-tests
	$(python) -m pytest $(parallel)

test-all: setup  ## all tests
	@scripts/setup-tests --slow
	$(python) -m pytest $(parallel) -m ""

coverage: setup  ## the tests once more, and which lines of src/headloom they reach
	@scripts/setup-tests
	$(python) -m pytest $(parallel) --cov --cov-report=
	$(python) -m coverage report --skip-covered --fail-under=92

check: setup  ## style, types and architecture; of the front end also its unit tests
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(python) scripts/house.py --budget
	.venv/bin/clang-format --dry-run --Werror native/*.h native/*.cpp tests/native/*.cpp
	cd studio && PATH="$(CURDIR)/.venv/bin:$$PATH" npm run --silent check

bench: setup  ## every benchmark: peer and headloom in turn, the ratio last; hours
	@for file in benchmarks/bench_*.py; do \
		echo "== $$file"; $(python) $$file || lacking="$$lacking $$file"; \
	done; [ -z "$$lacking" ] || echo "Ended early, for what they say above:$$lacking"

pictures: setup  ## every picture of the docs anew; look at each one
	@scripts/setup-tests
	$(python) scripts/pictures.py
	$(python) scripts/readme_pictures.py

docs: setup  ## the site of the documentation, in build/site; runs the tutorials
	@scripts/setup-docs
	NO_MKDOCS_2_WARNING=1 HF_HUB_OFFLINE=1 .venv/bin/mkdocs build --quiet --strict
	@echo build/site/index.html

wheel:  ## a wheel and a source distribution, in dist; see docs/install.md
	@scripts/wheel

clean:  ## remove what was built (.venv, build, the front end); runs stay
	rm -rf .venv build dist studio/node_modules src/headloom/studio/static
