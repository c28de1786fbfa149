"""Run one experiment: fit a probe, test it once, save it, and write a report.

`python train.py` uses configs/default.yaml and creates the store if it does not exist. Options override the config, as
in `--model=Linear --model.l2=0.1`. To use a different config, pass `--config configs/NAME.yaml` before the options.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import WandbLogger

from datamodules.features import FeatureDataModule
from extract.errors import InputError, at_least_one
from extract.recipe import StoreRecipe
from extract.registry import import_object
from extract.running.cli import OneLineErrors, explain, known_options
from extract.running.exit import end_process, exit_status
from extract.signals.registry import load_signal
from extract.store.shards import check_name
from extract.text import one_line
from probes.fitting.module import ProbeModule
from probes.fitting.quiet import quiet_lightning
from probes.registry import METHODS
from probes.report.report import Report, summary_table
from probes.report.wandb_logging import closing_wandb, log_report, prepare_wandb

HERE = Path(__file__).parent
PARSER = {
    "default_config_files": [str(HERE / "configs/default.yaml")],
    "usage": "%(prog)s [--config FILE] [--model NAME] [OPTION=VALUE ...]",
    "description": "Fit a probe, test it once, save it, and write a report.",
}


class TrainParser(OneLineErrors, LightningArgumentParser):
    """Command-line parser that reports each error on one line."""

    def parse_args(self, args: Sequence[str], *more: Any, **options: Any) -> Any:
        """Parse a command line."""
        return super().parse_args(recipe_as_mappings(args), *more, **options)

    def explain(self, message: str) -> str:
        """Convert an error message to one line. Suggest options of the recipe, too."""
        recipe = ArgumentParser()
        recipe.add_class_arguments(StoreRecipe, "data.recipe")
        line = explain(message, known_options(self) + known_options(recipe))
        if line.startswith("Expected `--model` to be one of") and "Did you mean" not in line:
            line += " `--data.recipe.model` selects the language model."
        return line


class KeepConfig(SaveConfigCallback):
    """Callback that writes the complete config to the run's folder and logs it to W&B."""

    def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Write and log the config."""
        options = self.parser.dump(self.config, skip_none=False)
        Path(trainer.default_root_dir, "config.yaml").write_text(options, encoding="utf-8")
        store = trainer.datamodule.store
        config = {
            **without_paths(yaml.safe_load(options)),
            "policy": store.identity["policy"],
            "store_identity": store.sha256,
            "git_commit": git_commit(),
        }
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.experiment.config.update(config, allow_val_change=True)


class TrainCLI(LightningCLI):
    """Command line of train.py."""

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Create a parser that reports each error on one line."""
        parser = TrainParser(**kwargs)
        parser.add_argument("-c", "--config", action="config", help="YAML file. Later options override its values.")
        return parser

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the model, data and run options, followed by the options of Lightning's trainer."""
        for method in METHODS.values():
            method.load()  # registers the class, so that --model accepts its name
        parser.add_lightning_class_args(ProbeModule, "model", subclass_mode=True)
        parser.add_lightning_class_args(FeatureDataModule, "data")
        run = parser.add_argument_group("The run")
        run.add_argument("--runs", type=str, default="runs", help="Folder of all runs.")
        run.add_argument("--name", type=str | None, default=None, help="Name of the run's folder; generated if null.")
        run.add_argument("--n_resamples", type=int, default=2000, help="Number of bootstrap resamples per interval.")
        parser.add_lightning_class_args(self.trainer_class, "trainer")

    def before_instantiate_classes(self) -> None:
        """Check the options, create the run's folder, and make the loggers write to it."""
        n_resamples, devices = self.config.n_resamples, self.config.trainer.devices
        at_least_one("n_resamples", n_resamples, default=2000)
        if str(devices) != "1" and not (isinstance(devices, list) and len(devices) == 1):
            raise InputError(
                f"Expected `trainer.devices` to be 1, but got {devices!r}. Omit this option, because probes are "
                "fitted on one device. Only `python -m extract` supports several devices."
            )
        recipes = [Path(str(path)).stem for path in self.config.config or []]
        module, _, probe_class = self.config.model.class_path.rpartition(".")
        method = recipes[-1] if recipes else import_object(f"{module}:{probe_class}").name
        self.run_folder = new_run_folder(Path(self.config.runs), self.config.name, method)
        self.config.trainer.default_root_dir = str(self.run_folder)
        loggers = self.config.trainer.logger
        for logger in loggers if isinstance(loggers, list) else []:
            logger.init_args.save_dir = str(self.run_folder)
            if "WandbLogger" in logger.class_path:
                logger.init_args.name = self.run_folder.name
            if "CSVLogger" in logger.class_path:
                logger.init_args.name, logger.init_args.version = "logs", ""

    def instantiate_classes(self) -> None:
        """Create the model, the datamodule and the trainer. If an error occurs, remove the run's folder."""
        with discarding(self.run_folder):
            super().instantiate_classes()


def recipe_as_mappings(arguments: Sequence[str]) -> list[str]:
    """Convert dotted recipe options to JSON, because jsonargparse 4.53 loses their escape sequences."""
    converted, rest = [], list(arguments)
    while rest:
        option, equals, value = (argument := rest.pop(0)).partition("=")
        path = option.removeprefix("--data.recipe.")
        if path != option and (equals or (rest and not re.match("--[a-z]", rest[0]))):
            value = value if equals else rest.pop(0)
            argument = "--data.recipe=" + json.dumps(
                reduce(lambda inner, key: {key: inner}, path.split(".")[::-1], value)
            )
        converted.append(argument)
    return converted


def new_run_folder(runs: Path, name: str | None, method: str) -> Path:
    """Create the folder of a run. The default name contains the method and the time."""
    check_name("run" if name is None else name, "name")
    stem = name or os.environ.get("WANDB_RUN_ID") or f"{method}-{datetime.now():%Y%m%d-%H%M%S}"
    for suffix in ["", *(f"-{number}" for number in range(2, 1000))]:
        folder = runs / f"{stem}{suffix}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if name is not None:
                break
    raise InputError(
        f"Expected `name` to be the name of a new run, but {str(folder)!r} already exists. Omit --name, or pass "
        "a different name."
    )


@contextmanager
def discarding(folder: Path, errors: type[BaseException] = BaseException) -> Iterator[None]:
    """Delete the files of a run if the `with` block raises one of the `errors`."""
    try:
        yield
    except errors:
        for name in ("logs", "wandb"):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "config.yaml").unlink(missing_ok=True)
        with suppress(OSError):  # not empty, for example if it contains a store
            folder.rmdir()
        raise


def without_paths(value: Any) -> Any:
    """Replace absolute paths in a config with their last components."""
    if isinstance(value, dict):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    path = Path(value) if isinstance(value, str) else Path()
    of_this_machine = path.is_absolute() and len(path.parts) > 1 and os.path.exists(Path(*path.parts[:2]))
    return path.name if of_this_machine else value  # a prompt can also begin with a slash


def git_commit() -> str | None:
    """Return the git commit of this repository, or None if it is not a git clone."""
    command = ["git", f"--git-dir={HERE / '.git'}", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def run(arguments: Sequence[str] | None = None) -> Path:
    """Run one experiment and return the folder of the run.

    Raises:
        InputError: If options or data are invalid.
    """
    quiet_lightning()
    os.environ.setdefault("WANDB_SILENT", "true")
    try:
        cli = TrainCLI(
            ProbeModule,
            FeatureDataModule,
            subclass_mode_model=True,
            run=False,
            seed_everything_default=0,
            save_config_callback=KeepConfig,
            save_config_kwargs={"save_to_log_dir": False},
            parser_kwargs=PARSER,
            args=list(sys.argv[1:] if arguments is None else arguments),
        )
    except (ValueError, MisconfigurationException) as error:
        cause = error if isinstance(error, InputError) else error.__cause__
        if isinstance(cause, InputError):
            raise cause from None
        raise InputError(f"Expected valid options, but Lightning reported: {one_line(error)}") from None
    loggers = [logger for logger in cli.trainer.loggers if isinstance(logger, WandbLogger)]
    prepare_wandb(loggers)
    with discarding(cli.run_folder):
        for signal in cli.datamodule.feature_spec.signals:
            # a saved probe can read only signals that its model computes; other signals raise an error
            load_signal(signal, cli.datamodule.scope)
        cli.datamodule.needs |= set(cli.model.needs)
        cli.datamodule.prepare_data()  # in `fit`, the trainer would catch Ctrl-C
    with discarding(cli.run_folder, InputError), closing_wandb():
        cli.trainer.fit(cli.model, cli.datamodule)
        if cli.model.choice is None:
            raise InputError("Expected at least one epoch, but no probe was fitted. Increase `trainer.max_epochs`.")
        cli.trainer.test(cli.model, cli.datamodule, verbose=False)
        report = Report(cli.model, cli.datamodule, int(cli.config.seed_everything), cli.config.n_resamples)
        log_report(report, cli.run_folder, report.write(cli.run_folder), loggers)
    no_effect = "The broader probe gets no weight, because it does not help on held-out groups.\n\n"
    if warning := report.record["warning"]:
        print(f"Warning: {warning}\n")
    print(
        f"{no_effect if report.record['novelty']['broader_share'] == 0 else ''}{summary_table(report.figures_of)}\n\n"
        f"Report: {cli.run_folder / 'report.md'}   Probe: {cli.run_folder / 'probe'}"
    )
    return cli.run_folder


if __name__ == "__main__":
    end_process(lambda: exit_status(run))
