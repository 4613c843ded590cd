"""The cluster of docs/cluster.md, set up as that page says: two scrapyd nodes, a Redis with users, a PostgreSQL.

The Redis is this machine's own, an older one than the bundled Valkey.

Files come from the page (`<!-- file: cluster/… -->`), and so do the commands that deploy and crawl; addresses, ports
and folders of this machine are put in place of the page's, and what a test must not wait for is added to the
environment files. systemd's part is played here: a unit's command gets the folder and environment that its unit names,
and no other. Nodes have a Python that knows the dependencies and not the project, so what runs there is the egg.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import create_engine, text

from crawler.queue.script import source
from tests.crawling import ROOT, STORED, Place, Run, fetched
from tests.databases import fresh_database
from tests.examples import Block, blocks_of, matches, steps_of
from tests.farm import Farm
from tests.project_copy import copy_project
from tests.servers import RunningServer, eventually, free_port, machine_redis

pytestmark = [pytest.mark.needs("postgres", "scrapyd", "curl", "redis-server"), pytest.mark.timeout(180)]

PAGE = blocks_of((ROOT / "docs/cluster.md").read_text(encoding="utf-8"))
FILES = {
    block.file.removeprefix("cluster/"): block.text for block in PAGE if block.file.startswith("cluster/")
}
DEPLOYING, CRAWLING = (block for block in PAGE if "test_deployment" in block.skip)
SHIPPED = ("crawler", "rankers", "settings", "scrapy.cfg", "setup.py", "pyproject.toml", "README.md")
DATABASE = "postgresql+psycopg://crawl:database-password@db.example.net/crawl"
NODES = ("node1", "node2")
LOGIN, PASSWORD = "lowtide", "scrapyd-password"
# Of scrapyd's: what is looked at, and what does something.
PAGES = ("", "jobs", "logs/", "items/", "daemonstatus.json", "listprojects.json", "listjobs.json")
ENDPOINTS = ("addversion.json", "schedule.json", "cancel.json", "delversion.json", "delproject.json")
# Roles whose settings hold a password of Redis, and run the site queue's script.
SCRIPT_USERS = ("agent", "coordinator", "operator")
# What is added to the page's environment files: the farm is on loopback, and nobody waits for a second's pause. Few
# slots, so that one node is not done before the other has begun.
MORE = {
    "LOWTIDE_ALLOW_PRIVATE_ADDRESSES": "127.0.0.0/8",
    "LOWTIDE_DOWNLOAD_DELAY": "0.15",
    "LOWTIDE_SITE_SLOTS": "2",
    "LOWTIDE_FLUSH_SECONDS": "0.1",
    "LOWTIDE_BATCH_SECONDS": "0.1",
    "LOWTIDE_LISTEN_ADDRESS": "127.0.0.1",
    "LOWTIDE_LISTEN_ALLOW": "127.0.0.0/8",
}
JOB_SECONDS = 60.0


def test_two_nodes_crawl_to_the_end(cluster: Cluster) -> None:
    cluster.operate("scrapy", "seed", *cluster.farm.seeds[2:])
    cluster.do(CRAWLING)
    for node in NODES:
        cluster.await_end_of_jobs(node)
    cluster.await_stored()
    assert cluster.stored() == cluster.farm.expected()
    assert set(fetched(cluster.farm.hits()).values()) == {1}
    assert cluster.farm.forbidden_hits() == []
    runs = cluster.rows("select scheduler, reason from runs where ended_at is not null")
    assert runs == [("hybrid", "finished")] * 2
    pages_of_each = cluster.rows("select count(*) from fetches group by agent")
    assert len(pages_of_each) == 2, "one node did it all"
    assert not any("Traceback" in log.read_text() for log in cluster.logs())
    assert "balanced" in cluster.operate("scrapy", "report", "ledger")
    cluster.operate("scrapy", "doctor")
    cluster.operate("scrapy", "queue", "show")
    assert cluster.refused_commands() == []


def test_a_redis_that_is_killed_and_started_again_loses_nothing(cluster: Cluster) -> None:
    """In the middle of a crawl, with the users of the page: this machine's Redis reads its file as any other does."""
    with Farm(sites=6, pages=40, kinds=(), names=(), delay_ms=20) as farm:
        cluster.operate("scrapy", "seed", *farm.seeds)
        for node in NODES:
            cluster.schedule(node, setting="LEASE_SECONDS=10")
        eventually(lambda: len(farm.hits()) > 40, "the crawl is in its middle", JOB_SECONDS)
        known = int(cluster.admin.hget("lt:{0}:count", "added") or 0)
        cluster.redis.kill()
        cluster.redis.start()
        assert int(cluster.admin.hget("lt:{0}:count", "added") or 0) == known
        for node in NODES:
            cluster.await_end_of_jobs(node)
        cluster.await_stored()
        stored = cluster.stored()
        assert {site: stored.get(site) for site in farm.expected()} == farm.expected()
        assert "balanced" in cluster.operate("scrapy", "report", "ledger")
        cluster.operate("scrapy", "doctor")
    reasons = {reason for (reason,) in cluster.rows("select reason from runs where ended_at is not null")}
    assert reasons <= {"finished", "shutdown"}
    assert cluster.refused_commands() == []


def test_a_wrong_password_is_refused(cluster: Cluster) -> None:
    for login in ("", f"{LOGIN}:guessed", f"guessed:{PASSWORD}"):
        with pytest.raises(HTTPError) as error:
            cluster.ask("node1", "daemonstatus.json", login=login)
        assert error.value.code == 401
        error.value.close()
    for path in (*PAGES, *ENDPOINTS):
        with pytest.raises(HTTPError) as error:
            cluster.ask("node1", path, posted={"project": "lowtide"} if path in ENDPOINTS else None, login="")
        assert error.value.code == 401, path
        error.value.close()
    deployed = cluster.shell("scrapyd-deploy node1 --egg lowtide.egg --version 2", SCRAPYD_PASSWORD="guessed")
    assert deployed.returncode == 1
    assert "401" in deployed.stderr
    assert cluster.ask("node1", "listversions.json", project="lowtide")["versions"] == ["1"]


def test_what_is_no_egg_is_refused_with_code_0(cluster: Cluster) -> None:
    """As the page warns: only the answer tells."""
    deployed = cluster.shell("scrapyd-deploy node1 --egg scrapy.cfg --version 2")
    assert deployed.returncode == 0
    assert '"status": "error"' in deployed.stdout
    assert cluster.ask("node1", "listversions.json", project="lowtide")["versions"] == ["1"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("SITE_SCHEDULER=hybird", ("SITE_SCHEDULER is 'hybird'", "random", "sorted", "hybrid")),
        ("SITE_SLTS=3", ("SITE_SLTS", "did you mean SITE_SLOTS?")),
        ("REDIS_URL=redis://agent:guessed@{redis}/0", ("refused this user or password",)),
    ],
)
def test_why_a_job_was_refused_stands_in_its_log(
    setting: str, words: tuple[str, ...], cluster: Cluster
) -> None:
    job = cluster.schedule("node1", setting=setting.format(redis=cluster.redis_address))
    cluster.await_end_of_jobs("node1")
    said = cluster.log("node1", job).read_text()
    assert [word for word in words if word not in said] == []
    assert "guessed" not in said
    cluster.admin.acl_log_reset()


def test_a_canceled_job_gives_its_sites_back(cluster: Cluster) -> None:
    job = cluster.begin_to_wait("node1")
    assert cluster.ask("node1", "cancel.json", {"project": "lowtide", "job": job})["prevstate"] == "running"
    cluster.await_end_of_jobs("node1")
    assert cluster.agents() == 0
    assert "Traceback" not in cluster.log("node1", job).read_text()


def test_a_node_that_is_stopped_lets_its_agents_end(cluster: Cluster) -> None:
    """As `systemctl stop` does: the unit has no KillMode, so all of its processes are told at once."""
    assert "KillMode" not in unit("scrapyd.service")
    job = cluster.begin_to_wait("node2")
    cluster.stop_node("node2")
    assert cluster.agents() == 0
    assert "Traceback" not in cluster.log("node2", job).read_text()
    cluster.start_node("node2")
    assert cluster.ask("node2", "listversions.json", project="lowtide")["versions"] == ["1"]


def test_a_listener_takes_packets(cluster: Cluster) -> None:
    port = free_port()
    with cluster.service("lowtide-listener.service", "main", LOWTIDE_LISTEN_PORT=str(port)) as listener:
        listener.says("listening on")
        sent = cluster.shell(f"printf '00000038||7||1042||200||20260101120000' > /dev/tcp/127.0.0.1/{port}")
        assert sent.returncode == 0, sent.stderr
        eventually(
            lambda: cluster.rows("select code, status from checks") == [(1042, 200)], "the check is stored"
        )
    assert cluster.refused_commands() == []


@pytest.mark.parametrize(
    ("user", "command"),
    [
        ("agent", "xrange lt:{0}:results - +"),
        ("agent", "del lt:{0}:results"),
        ("agent", "get other:{0}:crawl"),
        ("agent", "keys *"),
        ("agent", "flushall"),
        ("agent", "config get *"),
        ("coordinator", "lpush site:start_urls https://example.org"),
        ("coordinator", "hgetall other:{0}:count"),
        ("coordinator", "script flush"),
        ("listener", "xread streams lt:{0}:results 0"),
        ("listener", "hgetall lt:{0}:count"),
        ("listener", "evalsha 0123 1 lt:{0}:count"),
        ("operator", "get other:{0}:crawl"),
        ("operator", "flushdb"),
        ("operator", "shutdown"),
        ("operator", "acl whoami"),
    ],
)
def test_a_user_may_do_no_more_than_its_part(user: str, command: str, cluster: Cluster) -> None:
    with cluster.client(user) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command.split())
    cluster.admin.acl_log_reset()


def test_without_a_user_nothing_is_said(cluster: Cluster) -> None:
    with cluster.client("") as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    cluster.admin.acl_log_reset()


@pytest.mark.parametrize("user", SCRIPT_USERS)
def test_a_user_may_do_all_that_the_script_does(user: str, cluster: Cluster) -> None:
    """The script's rare ways too, which no crawl of a test goes."""
    called = set(re.findall(r"call\('([A-Z]+)'", source()))
    assert len(called) > 20
    assert [name for name in sorted(called) if not cluster.may(user, name)] == []


def test_units_name_what_is_there() -> None:
    for name in ("lowtide-coordinator.service", "lowtide-listener.service", "scrapyd.service"):
        told = unit(name)
        assert Path(told["EnvironmentFile"]).name in FILES
        assert {"Restart", "RestartSec", "TimeoutStopSec", "User", "WorkingDirectory"} <= told.keys()


# --- the cluster ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Up, with the egg on both nodes; all of it gone afterwards."""
    for program in ("scrapyd", "scrapyd_client"):
        if find_spec(program) is None:
            pytest.skip(f"no {program}: it is not installed (extra `deploy`)")
    if not shutil.which("curl"):
        pytest.skip("no curl on this machine")
    with ExitStack() as stack:
        # Not pytest's: the first line of a script ends at 127 bytes, and names a Python below this folder.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lt-cluster-")))
        database = stack.enter_context(fresh_database("postgres", folder))
        farm = stack.enter_context(
            Farm(sites=10, pages=15, kinds=("duplicate", "missing", "redirect"), names=())
        )
        place = stack.enter_context(Place(folder))
        up = Cluster(place, farm, database)
        stack.callback(up.end)
        up.begin()
        yield up


class Cluster:
    """Its machines are folders below the VAR_DIR of a Place, which finds whatever is left of their processes."""

    def __init__(self, place: Place, farm: Farm, database: str) -> None:
        self.farm = farm
        self._place = place
        self._database = create_engine(database)
        self._ports = {node: free_port() for node in NODES}
        self._redis_port = free_port()
        self._project = place.var / "lowtide"
        self._services = ExitStack()
        self._nodes: dict[str, Run] = {}
        self._here = {
            DATABASE: database,
            "/srv/lowtide": str(self._project),
            "queue.example.net:6379": self.redis_address,
            **{f"{node}.example.net:6800": f"127.0.0.1:{port}" for node, port in self._ports.items()},
            "https://example.org": farm.site(0),
            "https://example.com": farm.site(1),
        }

    def begin(self) -> None:
        """All of it, in the order of the page."""
        # The egg is made of these.
        copy_project(self._project, SHIPPED)
        make_environment(self._project / ".venv")
        self._start_redis()
        self._services.enter_context(self.service("lowtide-coordinator.service", "main"))
        for node in NODES:
            self._launch(node)
        deploy = self._told(FILES["scrapy.cfg"], "main")
        settings = (self._project / "scrapy.cfg").read_text().partition("[deploy]")[0]
        (self._project / "scrapy.cfg").write_text(settings + deploy)
        for node in NODES:
            self._await_answer(node)
        self.do(DEPLOYING)

    def end(self) -> None:
        """Whatever runs is ended."""
        for node in list(self._nodes):
            self.stop_node(node)
        self._services.close()
        self._database.dispose()

    # --- machines ---

    @property
    def redis_address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._redis_port}"

    def machine(self, name: str) -> Path:
        """What a machine has in place of /var/lib/lowtide."""
        folder = self._place.var / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _start_redis(self) -> None:
        folder = self.machine("queue")
        users = folder / "users.acl"
        users.write_text(FILES["users.acl"])
        options = {"port": str(self._redis_port), "bind": "127.0.0.1", "aclfile": str(users)}
        self.redis = RunningServer(folder, ("admin", "admin-password"), machine_redis(), **options)
        self._services.callback(self.redis.stop)
        self.admin = self.redis.client

    def start_node(self, node: str) -> None:
        """scrapyd, up."""
        self._launch(node)
        self._await_answer(node)

    def _launch(self, node: str) -> None:
        folder = self.machine(node)
        parsed = ConfigParser()
        parsed.read_string(self._told(FILES["scrapyd.conf"], node))
        # The page's poll interval is scrapyd's own, five seconds.
        own = {"bind_address": "127.0.0.1", "http_port": str(self._ports[node]), "poll_interval": "0.1"}
        parsed["scrapyd"].update(own)
        with (folder / "scrapyd.conf").open("w") as file:
            parsed.write(file)
        self._nodes[node] = self._run("scrapyd.service", node)

    def stop_node(self, node: str) -> None:
        """SIGTERM for all of its processes, as from systemd."""
        run = self._nodes.pop(node)
        if run.process.poll() is None:
            for pid in (run.pid, *children_of(run.pid)):
                os.kill(pid, signal.SIGTERM)
        run.wait()
        mark = f"{self.machine(node)}/"
        eventually(lambda: not processes_with(mark), f"{node}'s agents have ended", JOB_SECONDS)

    @contextmanager
    def service(self, name: str, machine: str, **more: str) -> Iterator[Run]:
        """A unit's command while the block runs; it must end well when it is told to."""
        run = self._run(name, machine, **more)
        try:
            yield run
        finally:
            run.end()
        run.succeeded()

    def _run(self, name: str, machine: str, **more: str) -> Run:
        told = unit(name)
        folder = self.machine(machine)
        env = {**self._environment(Path(told["EnvironmentFile"]).name, machine), **more}
        command = shlex.split(self._told(told["ExecStart"], machine))
        return Run(command, env, Path(self._told(told["WorkingDirectory"], machine)), folder / name)

    def _environment(self, file: str, machine: str) -> dict[str, str]:
        lines = self._told(FILES[file], machine).splitlines()
        named = dict(shlex.split(line)[0].split("=", 1) for line in lines)
        path = f"{self._project / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.machine(machine)), "LANG": "C.UTF-8", **named, **MORE}

    def _told(self, words: str, machine: str) -> str:
        """The page's words, with what is here in place of what is there."""
        for there, here in {**self._here, "/var/lib/lowtide": str(self.machine(machine))}.items():
            words = words.replace(there, here)
        return words

    # --- what a person does ---

    def do(self, block: Block) -> None:
        """The commands of a block of the page, which must print what stands there."""
        for step in steps_of(block.text):
            done = self.shell(self._told(step.command, "main"))
            assert done.returncode == 0, f"$ {step.command}\n{done.stdout}\n{done.stderr}"
            assert not step.expected or matches(step.expected, done.stdout.strip() + "\n"), done.stdout

    def operate(self, *words: str) -> str:
        """A command with the operator's settings; what it prints."""
        done = self.shell(shlex.join(words))
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def shell(self, command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A line of bash in the project's folder."""
        env = {**self._environment("operator.env", "main"), "SCRAPYD_PASSWORD": PASSWORD, **more}
        return subprocess.run(
            ["bash", "-c", command],
            env=env,
            cwd=self._project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=JOB_SECONDS,
            check=False,
        )

    def ask(
        self,
        node: str,
        path: str,
        posted: dict[str, str] | None = None,
        *,
        login: str = f"{LOGIN}:{PASSWORD}",
        **given: str,
    ) -> Any:
        """What scrapyd answers; HTTPError where it refuses."""
        url = f"http://127.0.0.1:{self._ports[node]}/{path}?{urlencode(given)}"
        headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
        data = urlencode(posted).encode() if posted else None
        with urlopen(Request(url, data, headers), timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "ok", found
        return found

    def _await_answer(self, node: str) -> None:
        eventually(lambda: self._answers(node), f"{node} answers", JOB_SECONDS)

    def _answers(self, node: str) -> bool:
        assert self._nodes[node].process.poll() is None, self._nodes[node].err + self._nodes[node].out
        try:
            return bool(self.ask(node, "daemonstatus.json"))
        except OSError:
            return False

    def schedule(self, node: str, **posted: str) -> str:
        """A job; its id."""
        job = {"project": "lowtide", "spider": "site", **posted}
        return str(self.ask(node, "schedule.json", job)["jobid"])

    def begin_to_wait(self, node: str) -> str:
        """A job that waits for seeds, as soon as it is at work; its id."""
        eventually(lambda: self.at_work() == 0, "the ends of those before are stored", JOB_SECONDS)
        job = self.schedule(node, setting="WHEN_IDLE=wait")
        eventually(lambda: self.at_work() == 1, f"{node}'s agent is at work", JOB_SECONDS)
        return job

    # --- what is seen ---

    def await_end_of_jobs(self, node: str) -> None:
        """Until nothing runs or waits there."""

        def ended() -> bool:
            jobs = self.ask(node, "listjobs.json", project="lowtide")
            return bool(jobs["finished"]) and not jobs["pending"] and not jobs["running"]

        eventually(ended, f"{node}'s jobs have ended: {self._nodes[node].out[-2000:]}", JOB_SECONDS)

    def await_stored(self) -> None:
        """Until nothing is in the results stream."""
        eventually(lambda: not self.admin.xlen("lt:{0}:results"), "everything is stored")

    def logs(self) -> list[Path]:
        """Those of all jobs."""
        return [log for node in NODES for log in self.machine(node).glob("scrapyd/logs/lowtide/site/*.log")]

    def log(self, node: str, job: str) -> Path:
        """That of one."""
        return self.machine(node) / f"scrapyd/logs/lowtide/site/{job}.log"

    def stored(self) -> dict[str, set[str]]:
        """What `Farm.expected` gives."""
        found: dict[str, set[str]] = {}
        for site, url in self.rows(f"select site, url from pages join sites using (site_id) where {STORED}"):
            found.setdefault(site, set()).add(url)
        return found

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """An SQL query to the crawl's database."""
        with self._database.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    def at_work(self) -> int:
        """How many agents have told that they began, and not that they ended."""
        return len(self.rows("select agent from runs where ended_at is null"))

    def agents(self) -> int:
        """How many have a session: one that ends well takes its own away."""
        return int(self.admin.zcard("lt:{0}:agents"))

    def client(self, user: str) -> redis.Redis:
        """A connection with the password that stands in the page's address; without any where nobody is named."""
        login = f"{user}:{user}-password@" if user else ""
        return redis.Redis.from_url(f"redis://{login}{self.redis_address}/0", retry=Retry(NoBackoff(), 0))

    def may(self, user: str, command: str) -> bool:
        """Whether the server would let this user do this with keys of the crawl."""
        for many in range(7):
            try:
                said = self.admin.execute_command("ACL", "DRYRUN", user, command, *["lt:{0}:key"] * many)  # type: ignore[no-untyped-call]
            except redis.ResponseError as error:
                assert "wrong number of arguments" in str(error), error
            else:
                return bytes(said) == b"OK"
        raise AssertionError(f"{command}: no number of arguments is right")

    def refused_commands(self) -> list[Any]:
        """What the server did not let somebody do."""
        return list(self.admin.acl_log())


def unit(name: str) -> dict[str, str]:
    """The [Service] section of one of the page's units."""
    parsed = ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(FILES[name])
    return dict(parsed["Service"])


def make_environment(folder: Path) -> None:
    """A Python with all that this one has but the project: its packages are linked, not installed anew."""
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for one in Path(sysconfig.get_path("purelib")).iterdir():
        if not one.name.startswith(("__editable__", "lowtide", "__pycache__")):
            (packages / one.name).symlink_to(one)
    for name in ("scrapy", "scrapyd", "scrapyd-deploy"):
        _, _, script = Path(sys.executable).with_name(name).read_text().partition("\n")
        (folder / "bin" / name).write_text(f"#!{folder / 'bin/python'}\n{script}")
        (folder / "bin" / name).chmod(0o755)


def children_of(pid: int) -> list[int]:
    """Processes that this one started, and is still the parent of."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def processes_with(mark: str) -> list[int]:
    """Living processes whose command line has this text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:  # it has ended
                continue
            if mark.encode() in line:
                found.append(int(entry.name))
    return found
