"""One experiment: fit a probe, test it once, and write its report and the saved probe.

`python train.py` alone runs configs/default.yaml and makes the store it needs. Options are flat: `--model=Linear
--model.l2=0.1 --data.positions=[last_prompt] --trainer.max_epochs=50`, or `--config configs/NAME.yaml` before them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import wandb
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import WandbLogger

from datamodules import FeatureDataModule
from extract.errors import InputError
from extract.running.cli import OneLineErrors
from extract.running.exit import exit_status
from extract.signals import load_signal
from extract.store.shards import check_name
from extract.text import one_line
from probes.difference_of_means import DifferenceOfMeans
from probes.fitting.module import ProbeModule
from probes.knn import KNN
from probes.latent import Latent
from probes.linear import Linear
from probes.logistic import Logistic
from probes.mlp import MLP
from probes.report.report import Report
from probes.ridge import Ridge
from probes.saved.card import summary_table, what_is_read

#: What `--model` takes by name.
PROBES = (Linear, Logistic, Ridge, DifferenceOfMeans, MLP, KNN, Latent)
HERE = Path(__file__).parent


class TrainParser(OneLineErrors, LightningArgumentParser):
    """Lightning's parser, with one line for a mistake."""


class KeepConfig(SaveConfigCallback):
    """Writes the resolved config into the run's folder, and sends it to W&B with what the run's data and code are."""

    def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Called once, on the first process, when the store is there."""
        text = self.parser.dump(self.config, skip_none=False)
        Path(trainer.default_root_dir, "config.yaml").write_text(text, encoding="utf-8")
        store = trainer.datamodule.store
        config = {
            **without_places(json.loads(self.parser.dump(self.config, format="json", skip_none=False))),
            "policy": store.identity["policy"],
            "store_identity": store.sha256,
            "git_commit": git_commit(),
        }
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.experiment.config.update(config, allow_val_change=True)


class TrainCLI(LightningCLI):
    """Adds the run's name, and puts everything a run writes into runs/NAME."""

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """The parser with one-line errors."""
        parser = TrainParser(**kwargs)
        parser.add_argument(
            "-c", "--config", action="config", help="YAML file with options; give it before the options that change it"
        )
        return parser

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Options of the run itself."""
        parser.add_argument("--runs", type=str, default="runs", help="Folder that holds the runs.")
        parser.add_argument(
            "--name",
            type=str | None,
            default=None,
            help="Name of this run's folder; null makes one of the probe, the date and the time.",
        )
        parser.add_argument(
            "--n_resamples", type=int, default=2000, help="Resamples of the questions behind each interval."
        )

    def before_instantiate_classes(self) -> None:
        """Make the run's folder and point the loggers to it.

        Raises:
            InputError: More than one device.
        """
        devices = self.config.trainer.devices
        if str(devices) != "1" and not (isinstance(devices, list) and len(devices) == 1):
            raise InputError(
                f"Expected `trainer.devices` to be 1, because all layers' probes are fitted together on one device, but got {devices!r}. Leave it out; `torchrun` spreads `python -m extract` over several."
            )
        recipes = [Path(str(path)).stem for path in self.config.config or []]
        method = recipes[-1] if recipes else self.config.model.class_path.rsplit(".", 1)[-1].lower()
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
        """Make model, data and trainer; a run whose options they refuse leaves no folder."""
        try:
            super().instantiate_classes()
        except BaseException:
            discard(self.run_folder)
            raise


def new_run_folder(runs: Path, name: str | None, method: str) -> Path:
    """Make ``runs/name``; without a name, one of the config file or the method, and the time, that no other run has.

    Raises:
        InputError: The name is no plain one, or its folder is there already or can't be made.
    """
    if name is not None:
        check_name(name, "name")
    stem = name or os.environ.get("WANDB_RUN_ID") or f"{method}-{datetime.now():%Y%m%d-%H%M%S}"
    for number in range(1, 1000):
        folder = runs / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if name is not None:
                raise InputError(
                    f"Expected `name` to be that of a new run, but {str(folder)!r} exists. Give another --name, or none, or delete the folder."
                ) from None
        except OSError as error:
            raise InputError(
                f"Expected `runs` to be a folder that can be written, but {str(folder)!r} can't be made: {error.strerror}. Give another --runs."
            ) from error
    raise InputError(f"Expected a free name for the run in {str(runs)!r}, but found none. Give a --name.")


def discard(folder: Path) -> None:
    """Take away what a run that never began has put into its folder, and the folder if nothing else is in it."""
    for name in ("logs", "wandb"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "config.yaml").unlink(missing_ok=True)
    with suppress(OSError):  # not empty: a user's store, for example
        folder.rmdir()


def without_places(value: Any) -> Any:
    """A config as it may leave this machine: of a path from the root only the last part, as in a store's identity."""
    if isinstance(value, dict):
        return {key: without_places(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_places(one) for one in value]
    path = Path(value) if isinstance(value, str) else Path()
    of_this_machine = path.is_absolute() and len(path.parts) > 1 and os.path.exists(Path(*path.parts[:2]))
    return path.name if of_this_machine else value  # a prompt may begin with a slash too


def git_commit() -> str | None:
    """Commit of this code, None where it is no clone."""
    try:
        done = subprocess.run(
            ["git", f"--git-dir={HERE / '.git'}", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
    except OSError:  # no git
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def wandb_offline_without_key() -> None:
    """Without a W&B key, log offline and say so once."""
    if "WANDB_MODE" in os.environ or os.environ.get("WANDB_API_KEY"):
        return
    netrc = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    if not (netrc.is_file() and "wandb" in netrc.read_text(encoding="utf-8", errors="ignore")):
        os.environ["WANDB_MODE"] = "offline"
        print("No W&B key found: logging offline; `wandb sync` uploads a run later.", file=sys.stderr)


def quiet() -> None:
    """Silence what Lightning says about itself; our own lines say what matters."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # Lightning 2.6 calls what 4.49 deprecated
    warnings.filterwarnings("ignore", message=".*intended to run from within Python.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*The number of training batches.*")


def log_report(report: Report, folder: Path, pictures: dict[str, Path], loggers: Sequence[Any]) -> None:
    """Give W&B the figures, predictions, pictures and saved probe of a report that was written into a run's folder."""
    val_figures = {metric.replace("/", "_"): value for metric, value in report.module.val_figures.items()}
    for logger in loggers:
        if not isinstance(logger, WandbLogger):
            continue
        table = report.predictions()
        rows = list(zip(*(table[column].to_pylist() for column in table.column_names), strict=True))
        logger.experiment.log(
            {
                "predictions": wandb.Table(columns=table.column_names, data=rows),
                **{f"plots/{name}": wandb.Image(str(path)) for name, path in pictures.items()},
            }
        )
        for method, figures in report.figures_of.items():
            for metric, figure in figures.items():
                if isinstance(figure, dict):
                    logger.experiment.summary[f"test/{method}/{metric}"] = figure["value"]
        for metric, value in val_figures.items():
            logger.experiment.summary[f"best/{metric}"] = value
        logger.experiment.log_artifact(probe_artifact(report.probe().config, val_figures, folder / "probe"))


def probe_artifact(config: dict[str, Any], val_figures: dict[str, float], folder: Path) -> wandb.Artifact:
    """The saved probe as a W&B model: a name for each method and base model, a version for each run."""
    artifact = wandb.Artifact(
        re.sub(r"[^A-Za-z0-9_.-]", "-", f"{config['name']}-{config['model']['id']}")[:128],
        type="model",
        description=f"{config['name']} probe of {config['model']['id']}, reads {what_is_read(config['layer'], config['position'], config.get('pooled'))}",
        metadata={
            "base_model": config["model"]["id"],
            "base_model_revision": config["model"]["revision"],
            **{key: config[key] for key in ("layer", "position", "target")},
            "store_identity": config["training"]["store"],
            **val_figures,
        },
    )
    artifact.add_dir(str(folder.resolve()), policy="immutable")  # no copy: the run's folder keeps the files
    return artifact


@contextmanager
def closing_wandb() -> Iterator[None]:
    """Close W&B's run at the end, as a failed one after an error, so that a sweep does not take it for finished."""
    exit_code = 1
    try:
        yield
        exit_code = 0
    finally:
        wandb.finish(exit_code)


def fit_and_test(cli: TrainCLI) -> Report:
    """Fit the probe, test it once, and make its report.

    Raises:
        InputError: Bad options or data.
    """
    if cli.config.n_resamples < 1:
        raise InputError(
            f"Expected `n_resamples` to be at least 1, but got {cli.config.n_resamples}. 2000 is the default."
        )
    for signal in cli.datamodule.wanted.signals:
        load_signal(signal, cli.datamodule.scope)  # what is saved has to be readable from a model
    cli.trainer.fit(cli.model, cli.datamodule)
    if cli.model.choice is None:
        raise InputError("Expected `trainer.max_epochs` to be at least 1, but nothing was fitted. Give more epochs.")
    cli.trainer.test(cli.model, cli.datamodule, verbose=False)
    return Report(cli.model, cli.datamodule, seed=int(cli.config.seed_everything), n_resamples=cli.config.n_resamples)


def run(arguments: Sequence[str] | None = None) -> Path:
    """Run one experiment and return its folder.

    Raises:
        InputError: Bad options or data; the message says what to do.
    """
    quiet()
    try:
        cli = TrainCLI(
            ProbeModule,
            FeatureDataModule,
            subclass_mode_model=True,
            run=False,
            seed_everything_default=0,
            save_config_callback=KeepConfig,
            save_config_kwargs={"save_to_log_dir": False},
            parser_kwargs={"default_config_files": [str(HERE / "configs" / "default.yaml")]},
            args=list(sys.argv[1:] if arguments is None else arguments),
        )
    except InputError:
        raise
    except (ValueError, MisconfigurationException) as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise InputError(f"Expected options that Lightning takes, but it says: {one_line(error)}") from None
    if any(isinstance(logger, WandbLogger) for logger in cli.trainer.loggers):
        wandb_offline_without_key()
    try:
        cli.datamodule.prepare_data()  # makes a missing store, outside the trainer, which takes Ctrl-C for a wish to save
    except BaseException:
        discard(cli.run_folder)
        raise
    try:
        with closing_wandb():
            report = fit_and_test(cli)
            pictures = report.write(cli.run_folder)
            log_report(report, cli.run_folder, pictures, cli.trainer.loggers)
    except InputError:
        discard(cli.run_folder)
        raise
    print(summary_table(report.figures_of))
    print(f"\nReport: {cli.run_folder / 'report.md'}   Probe: {cli.run_folder / 'probe'}")
    return cli.run_folder


def main() -> int:
    """Command line: the exit status, and one line for what a user can put right."""
    return exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
