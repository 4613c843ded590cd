"""`scrapy load`: loads of sites by the hour as CSV."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from scrapy.exceptions import UsageError

from crawler.command import CommandError, LowtideCommand, WrongCallError, print_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from sqlalchemy import Engine


class Command(LowtideCommand):
    def syntax(self) -> str:
        return "import FILE | export [FILE] | forget SITE …"

    def short_desc(self) -> str:
        return "Import loads of sites by the hour, export all known ones, forget imported ones"

    def long_desc(self) -> str:
        return (
            "Loads are shares of a full line, 0 idle to 1 full, by the hour, UTC. import: a CSV file with the header "
            "site,day,h00,…,h23 (day: all, weekday, weekend) or site,0,…,23. An imported hour replaces the measured "
            "one. export: all known loads, in the same format. forget: use the measured loads again. FILE may be -; "
            "the default of export is standard output."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--json", action="store_true", help="import, forget: print the figures as JSON")

    def work(self, args: list[str], opts: argparse.Namespace) -> None:
        from crawler.local.local import require_tables

        word, names = (args[0], args[1:]) if args else ("", [])
        counts = {"import": range(1, 2), "export": range(2), "forget": range(1, sys.maxsize)}
        if len(names) not in counts.get(word, range(0)):
            raise UsageError(f"expected {self.syntax()}", print_help=False)
        assert self.settings is not None
        require_tables(self.settings, self.options)
        if word == "import":
            self._import(names[0], as_json=opts.json)
        elif word == "export":
            self._export(names[0] if names else "-")
        else:
            self._forget(names, as_json=opts.json)

    def _import(self, name: str, *, as_json: bool) -> None:
        from crawler.disk import make_folder, sync_folders
        from crawler.planning import load, load_store
        from crawler.store.database import migrate, open_database

        with _source(name) as lines:
            try:
                found = load.read_csv(lines)
            except (load.LoadFileError, UnicodeDecodeError) as error:
                raise CommandError(f"{name}: {error}; nothing was imported") from None
        if not self.options.database_url:
            sync_folders(*make_folder(self.options.var))
        engine = open_database(self.options.database)
        migrate(engine)  # Loads may be imported before the first crawl.
        many = load_store.import_profiles(engine, found.items())
        if as_json:
            print_json({"imported": many})
        else:
            print(f"loads of {many} sites imported")

    def _export(self, name: str) -> None:
        from crawler.planning import load, load_store

        table = load_store.load_table(self._tables())
        profile = table.profile()
        order = sorted(range(len(table)), key=table.names.__getitem__)
        with _target(name) as out:
            load.write_csv(out, ((table.names[row], profile[row]) for row in order))

    def _forget(self, names: list[str], *, as_json: bool) -> None:
        from crawler.planning import load_store
        from crawler.urls.url import UrlError, split_page

        try:
            sites = [split_page(name if "://" in name else f"https://{name}")[0] for name in names]
        except UrlError as error:
            raise CommandError(f"{error}; nothing was forgotten") from None
        engine = self._tables()
        gone = [site for site in sites if load_store.forget_profile(engine, site)]
        if as_json:
            print_json({"forgotten": gone})
        for site in sites if not as_json else ():
            print(f"{site}: {'measured again' if site in gone else 'nothing was imported of it'}")
        if not gone:
            raise CommandError(
                "no loads were imported of these sites; `scrapy load export` shows what is known"
            )

    def _tables(self) -> Engine:
        from crawler.admin import operator
        from crawler.store.database import told

        engine = operator.the_tables(self.options)
        if engine is None:
            raise CommandError(f"no loads are known yet: no tables in {told(self.options.database)}")
        return engine


@contextmanager
def _source(name: str) -> Iterator[TextIO]:
    if name == "-":
        yield sys.stdin
        return
    try:
        with Path(name).open(encoding="utf-8-sig", newline="") as lines:
            yield lines
    except OSError as error:
        raise WrongCallError(f"{name}: {error.strerror or error}; expected a CSV file of loads") from None


@contextmanager
def _target(name: str) -> Iterator[TextIO]:
    if name == "-":
        yield sys.stdout
        return
    try:
        with Path(name).open("w", encoding="utf-8", newline="") as out:
            yield out
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}; expected a file to write to") from None
