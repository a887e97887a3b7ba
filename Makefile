# Two commands: `make book` builds the executed book, `make test` checks everything.
# The first run of either makes .venv with the versions of requirements.lock.

PYTHON ?= python3
PORT ?= 8000
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready

.PHONY: book student-book serve test notebooks editions environment lab clean

book: $(READY)
	$(RUN) tools/book.py

student-book: $(READY)
	$(RUN) tools/student_book.py

serve: $(READY)
	@test -f _build/html/index.html || { echo "There is no book yet: run \`make book\` first."; exit 1; }
	@echo "The book is at http://127.0.0.1:$(PORT)/  (stop with Ctrl-C; another port: make serve PORT=8001)"
	@$(RUN) -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

test: $(READY)
	$(RUN) -m pytest $(PYTEST_ARGS)

notebooks: $(READY)
	$(RUN) -m pathsum.notebooks

lab: $(READY)
	$(VENV)/bin/jupyter lab notebooks

editions: $(READY)
	$(RUN) -m pathsum.editions

environment: $(READY)
	$(RUN) tools/environment.py

clean:
	rm -rf _build _vendor

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "This book needs Python 3.11 or newer, and \`$(PYTHON)\` is not: name another one, as in"; \
	  echo "    make book PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "\`$(PYTHON)\` cannot make virtual environments: install its venv package"; \
	  echo "(on Debian and Ubuntu: apt-get install python3-venv)."; exit 1; }
	@echo "Installing the pinned packages into $(VENV) (a few minutes, once) ..."
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@
