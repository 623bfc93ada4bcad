# GPU Portal. Everything a person types; `make help` lists it.

PORT ?= 8010
BIND ?= 127.0.0.1
# A host without GPUs and recipes: make run REQUIREMENTS=requirements-web.txt
REQUIREMENTS ?= requirements.txt
ARGS ?=
# SETUP=true: what make check needs is installed, and another set-up may be under way
SETUP ?= sh deploy/setup.sh
PYTHON_VENV = .venv/bin/python
export REQUIREMENTS

.DEFAULT_GOAL := help
.PHONY: help run setup node test check format bench lock deb docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

run: ## Install what is missing, start everything, print address and logins (PORT=8010 BIND=127.0.0.1)
	@sh deploy/setup.sh run
	@exec $(PYTHON_VENV) manage.py portal --with-starter --bind "$(BIND)" --port "$(PORT)" $(ARGS)

setup: ## Only install: virtual environment, Python and front-end packages
	@sh deploy/setup.sh setup

node: ## Only install what a GPU node needs: virtual environment and Python packages
	@sh deploy/setup.sh node

test: ## Run the whole suite: SQLite, then PostgreSQL where it is installed (ARGS="tests/gpuportal -k lock")
	@sh deploy/setup.sh test
	@exec $(PYTHON_VENV) -m tests.run $(ARGS)

check: ## Check format, lint, types, import contracts, migrations and docs; all, then fail
	@$(SETUP) check
	@status=0; made=$$(mktemp -d); \
	$(PYTHON_VENV) -m ruff format --check . || status=1; \
	$(PYTHON_VENV) -m ruff check . || status=1; \
	$(PYTHON_VENV) -m mypy . || status=1; \
	.venv/bin/lint-imports || status=1; \
	GPUPORTAL_VAR="$$made" $(PYTHON_VENV) manage.py makemigrations --check --dry-run || status=1; \
	$(PYTHON_VENV) -m sphinx -W --keep-going -q -b dummy -d "$$made/docs" docs "$$made" || status=1; \
	rm -rf "$$made"; exit $$status

format: ## Put every Python file into the house's format
	@$(PYTHON_VENV) -m ruff format .
	@$(PYTHON_VENV) -m ruff check --fix .

# bench/storm.py blows for an hour, bench/measure_*.py write reference rows: by hand.
BENCHES := sampling fanout recovery history booking waiting estimate placement

bench: ## Run the benchmarks and print their tables (minutes)
	@sh deploy/setup.sh check
	@for name in $(BENCHES); do echo "== bench/$$name.py"; \
	  PYTHONSAFEPATH=1 PYTHONPATH=. $(PYTHON_VENV) "bench/$$name.py" $(ARGS) || exit 1; done

lock: ## Pin the requirements again (needs the network)
	@sh deploy/lock.sh

deb: ## Build the Debian package of a GPU node in dist/ (ARGS="--version 0.1.0+git7")
	@sh deploy/deb/build $(ARGS)

docs: ## Build the site of docs/ in dist/docs/
	@$(SETUP) check
	@$(PYTHON_VENV) -m sphinx -W --keep-going -q -b html -d dist/docs/.doctrees docs dist/docs
	@echo dist/docs/index.html

clean: ## Remove what make setup installed, and caches; data in var/ stays
	@sh deploy/setup.sh idle
	@rm -rf .venv node_modules .bundle .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	  .import_linter_cache test-results
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
