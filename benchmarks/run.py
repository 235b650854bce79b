"""One run of the benchmark: engines take turns, and results are written.

Every engine runs in a process of its own, so that none waits for another's
threads or counts another's memory. What they print goes to a file.
"""

import contextlib
import itertools
import multiprocessing
import os
import tempfile
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import engines
import machine
import rich.console
import steps
import text_case
import trainers
import training_case
from cases import make_weights
from rich.progress import MofNCompleteColumn
from rich.progress import Progress
from rich.progress import TextColumn
from rich.progress import TimeElapsedColumn

from keras_transformer.text.lines import read_lines

SENTENCES = 1_000  # of `--source`, at most
REFERENCE = "graph"  # the engine whose targets others are compared with
LOG = "log.txt"

console = rich.console.Console(stderr=True, highlight=False)


class Worker:
    """A process that stays alive, and runs functions one after the other."""

    def __init__(self, log: Path):
        self.executor = ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_print_to,
            initargs=(log,),
        )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.executor.shutdown()

    def __call__(self, function, *arguments):
        return self.executor.submit(function, *arguments).result()


class Run:
    """One run of the command: what to measure, and the results.

    Args:
        output: Folder of the results.
        registry: The engines by name.
        names: Names of the engines to measure.
        runs: Number of rounds.
        **options: Other options to write into the results.
    """

    def __init__(
        self, output: Path, registry: dict, names, runs: int, **options
    ):
        if engines.missing(["matplotlib"]):
            raise ImportError(
                "The plots need matplotlib. `pip install matplotlib` installs "
                "it."
            )
        self.output = output
        self.registry = registry
        self.titles = {name: registry[name].title for name in registry}
        self.runs = runs
        self.has_failed = False
        self.results = {
            "options": {"runs": runs, **options},
            "machine": machine.describe(),
            "versions": machine.versions(),
            "skipped": {},
            "cases": [],
        }
        self.names = [name for name in names if self._is_there(name)]

    def measure_grid(self, cases):
        """Measures every engine on every case."""
        import report

        calls = len(cases) * len(self.names) * (1 + self.runs)
        with self._progress(calls) as progress:
            for size, group in itertools.groupby(cases, lambda c: c.size):
                with contextlib.ExitStack() as stack:
                    sizes, meter, workers = self._start(stack, size)
                    for case in group:
                        self._measure_case(
                            case, sizes, meter, workers, progress
                        )
                        report.write_grid(
                            self.results,
                            self.output,
                            self.titles,
                            engines.BASELINE,
                            engines.PEERS,
                        )

    def measure_text(self, translator, source, searches):
        """Measures every engine on the lines of a file."""
        import report

        lines = list(read_lines(source))
        texts = [line for line in lines if line.strip()][:SENTENCES]
        if not texts:
            raise ValueError(f"Text must not be empty. Received: {source}.")
        self.results["options"]["source"] = source.name
        self.results["num_sentences"] = len(texts)
        calls = len(searches) * len(self.names) * (1 + self.runs)
        with self._progress(calls) as progress:
            for search in searches:
                with tempfile.TemporaryDirectory() as folder:
                    with Worker(self.output / LOG) as worker:
                        worker(
                            text_case.export, str(translator), search, folder
                        )
                    job = {"folder": folder, "search": search, "texts": texts}
                    self._measure_texts(job, progress)
                report.write_text(
                    self.results,
                    self.output,
                    self.titles,
                    text_case.BASELINE,
                )

    def measure_steps(self, sizes):
        """Measures our steps by position."""
        import report

        curves = []
        with self._progress(2 * len(sizes)) as progress:
            for size, jit_compile in itertools.product(sizes, (False, True)):
                progress.label(f"{size}{', XLA' if jit_compile else ''}")
                with (
                    tempfile.TemporaryDirectory() as folder,
                    Worker(self.output / LOG) as worker,
                ):
                    worker(make_weights, size, folder)
                    curve = worker(
                        steps.measure, folder, size, jit_compile, self.runs
                    )
                curves.append(curve)
                progress.advance()
        del self.results["cases"]
        self.results |= {
            "batch": steps.BATCH,
            "capacity": steps.CAPACITY,
            "curves": curves,
        }
        report.write_steps(self.results, self.output)

    def measure_training(self, cases, backend, profiled=()):
        """Measures every engine on every case, each run in a new process.

        On JAX, which is for a GPU, an engine stays in its process: compiling
        takes far longer than a run, and on the GPU no run depends on what a
        processor's threads and memory have done before. The steps of engines in
        `profiled` are also profiled.
        """
        import training_report

        log = self.output / LOG
        with Worker(log) as meter:
            self.results["ceilings"] = meter(machine.PRODUCT_RATES[backend])
        calls = len(cases) * len(self.names) * self.runs
        with self._progress(calls) as progress:
            for case in cases:
                with Worker(log) as worker:
                    case = worker(training_case.prepare, case)
                    work = worker(training_case.work, case)
                measured = {
                    "size": case.size,
                    **work,
                    "engines": {},
                    "profiles": {},
                }
                self.results["cases"].append(measured)
                for measured["engines"] in self._train(
                    case, backend == "jax", progress
                ):
                    training_report.write(self.results, self.output)
                profiles = measured["profiles"]
                for name in profiled:
                    with self._failing(name, profiles), Worker(log) as worker:
                        profiles[name] = worker(
                            trainers.profile, self.registry[name], case
                        )
                training_report.write(self.results, self.output)

    def _start(self, stack, size):
        """Makes the weights of a size, and starts a process per engine."""
        log = self.output / LOG
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        meter = stack.enter_context(Worker(log))
        sizes = meter(make_weights, size, folder)
        if "ceilings" not in self.results:
            self.results["ceilings"] = meter(machine.ceilings)
        workers = {}
        for name in self.names:
            worker = stack.enter_context(Worker(log))
            with self._failing(name, workers):
                worker(engines.load, name, folder)
                workers[name] = worker
        return sizes, meter, workers

    def _measure_case(self, case, sizes, meter, workers, progress):
        progress.label(" ".join(map(str, case)))
        floor = meter(machine.floor, sizes, case, self.results["ceilings"])
        found = {}
        for name, worker in list(workers.items()):
            with self._failing(name, workers):
                found[name] = worker(engines.prepare, case) | {"seconds": []}
            progress.advance()
        for name in _in_turn(found, self.runs):
            if name in workers:
                with self._failing(name, workers):
                    found[name]["seconds"].append(
                        workers[name](engines.measure)
                    )
            progress.advance()
        found = {name: found[name] for name in found if name in workers}
        for name in found:
            if not self.registry[name].has_same_weights:
                found[name]["target_ids"] = None
        _compare(found, "target_ids", REFERENCE)
        self.results["cases"].append(
            {**case._asdict(), "floor": floor, "engines": found}
        )

    def _measure_texts(self, job, progress):
        keys = ("seconds", "first_result_seconds", "peak_bytes")
        alive = dict.fromkeys(self.names)
        found = {}
        with open(self.output / LOG, "a", encoding="utf-8") as log:
            for name in self.names:
                progress.label(f"{job['search']}: settings of {name}")
                with self._failing(name, alive):
                    setting = self._best_setting(log, name, job)
                    found[name] = {"setting": setting, **{k: [] for k in keys}}
                progress.advance()
            for name in _in_turn(found, self.runs):
                progress.label(f"{job['search']}: {name}")
                if name in alive:
                    with self._failing(name, alive):
                        measured = text_case.measure_elsewhere(
                            log,
                            name=name,
                            setting=found[name]["setting"],
                            **job,
                        )
                        for key in keys:
                            found[name][key].append(measured[key])
                        found[name]["translations"] = measured["translations"]
                progress.advance()
        found = {name: found[name] for name in found if name in alive}
        _compare(found, "translations", text_case.REFERENCE)
        self.results["cases"].append(
            {"search": job["search"], "engines": found}
        )

    def _train(self, case, keeps_processes, progress):
        """Yields after each round what each engine has measured so far.

        Each measurement is a list over the rounds. With `keeps_processes` an
        engine has one process for all of them.
        """
        alive = dict.fromkeys(self.names)
        found = {name: {} for name in self.names}
        turns = enumerate(_in_turn(self.names, self.runs), 1)
        with contextlib.ExitStack() as stack:
            workers = {}
            for number, name in turns:
                progress.label(f"{case.size}: {name}")
                if name in alive:
                    with self._failing(name, alive):
                        measured = self._trained(name, case, workers, stack)
                        for key, value in measured.items():
                            found[name].setdefault(key, []).append(value)
                if not keeps_processes:
                    stack.close()
                    workers.clear()
                progress.advance()
                # Saved even if a later one fails.
                if number % len(self.names) == 0:
                    yield {name: found[name] for name in found if name in alive}

    def _trained(self, name, case, workers, stack):
        """Measures an engine in its process; `stack` ends one that is new."""
        measured = {}
        if name not in workers:
            worker = stack.enter_context(Worker(self.output / LOG))
            engine = self.registry[name]
            measured["ready_seconds"] = worker(trainers.start, engine, case)
            workers[name] = worker
        return measured | workers[name](trainers.measure)

    def _best_setting(self, log, name, job):
        settings = text_case.ENGINES[name].settings()
        if len(settings) == 1:
            return settings[0]
        return min(
            settings,
            key=lambda setting: text_case.measure_elsewhere(
                log, name=name, setting=setting, **job
            )["seconds"],
        )

    def _is_there(self, name):
        absent = engines.missing(self.registry[name].needs)
        if absent:
            title = self.titles[name]
            reason = f"not installed; pip install {' '.join(absent)}"
            self.results["skipped"][title] = reason
            console.print(f"Left out: {title}, {reason}")
        return not absent

    @contextlib.contextmanager
    def _failing(self, name, workers):
        """Goes on without an engine that fails: a run may take hours."""
        try:
            yield
        except Exception as error:
            log = self.output / LOG
            with open(log, "a", encoding="utf-8") as file:
                file.write(
                    f"{name}:\n{''.join(traceback.format_exception(error))}"
                )
            reason = " ".join(f"failed, see {LOG}: {error}".split())
            console.print(f"{self.titles[name]} {reason}")
            self.results["skipped"][self.titles[name]] = reason
            self.has_failed = True
            workers.pop(name, None)

    @contextlib.contextmanager
    def _progress(self, total):
        columns = (
            TextColumn("{task.description}"),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console) as bar:
            yield _Task(bar, bar.add_task("", total=total))
        console.print(f"Results in {self.output}")


class _Task:
    """The only line of the progress bar."""

    def __init__(self, bar, task):
        self.bar = bar
        self.task = task

    def label(self, text):
        self.bar.update(self.task, description=text)

    def advance(self):
        self.bar.advance(self.task)


def _in_turn(names, runs):
    """Yields every name once per round, each round beginning with another.

    So no engine always runs first, and a machine that slows down slows down
    all of them.
    """
    names = list(names)
    for number in range(runs):
        shift = number % max(len(names), 1)
        yield from names[shift:] + names[:shift]


def _compare(found, key, reference):
    """Replaces targets by the share that equals the reference's."""
    targets = {name: found[name].pop(key) for name in found}
    expected = targets.get(reference)
    for name, received in targets.items():
        found[name]["same"] = None
        if expected and received:
            equal = [a == b for a, b in zip(expected, received, strict=True)]
            found[name]["same"] = sum(equal) / len(equal)


def _print_to(log):
    """Sends what a process prints to a file, also from C++ libraries."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
