"""`python recipes/train.py EXPERIMENT.yaml RUN` trains a sentence encoder; docs/recipes.md describes experiments.

RUN is a folder for everything the run writes; RUN/model is the result, a plain sentence-transformers model, with the
NLI classifier in nli_head/ if the last stage trained one. Started again, a run goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from corpus import make_texts, read_texts
from datasets import Dataset, DatasetDict
from encoders import make_encoder, resolve
from experiment import Experiment, Objective
from labelling import label_texts
from objectives import EmbeddingDistillationLoss
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss, SoftmaxLoss, TripletLoss
from settings import SettingsError, read_settings
from torch import nn
from trainer import LengthGroupedBatchSampler, SeededBatchSampler, Trainer
from training_data import NLI_CLASSES, make_dataset, sample
from transformers import set_seed
from transformers.trainer import TRAINER_STATE_NAME

from fastsal.io.writers import atomic_file
from fastsal.measure.evaluation import DataError, NliHead

DATA_HELP = "folder with the data (default: FASTSAL_DATA, else by name from the Hub)"


def train(experiment: Experiment, run: Path, data: Path | None, device: str | None = None) -> Path:
    """Train, or finish training, and return the folder of the result, RUN/model.

    Args:
        run: folder for models, checkpoints and teachers' embeddings.
        data: folder with the data; None for the Hub.
        device: as torch's; None for the best one.

    Raises:
        DataError: data is missing or malformed.
        ValueError: settings that do not fit each other, or a `run` that was begun with other ones.
    """
    _check_settings(experiment, run / "experiment.json")
    model = run / "0-begin" / "model"
    if not model.is_dir():
        _save(make_encoder(experiment.encoder, data, experiment.seed, device), None, model)
    for number, stage in enumerate(experiment.stages, 1):
        begin, model = model, run / f"{number}-{stage.name}" / "model"
        if not model.is_dir():
            _train_stage(experiment, number, begin, model, data, device)
    result = run / "model"
    if not result.is_dir():
        _in_one_step(result, lambda folder: shutil.copytree(model, folder))
    return result


def _check_settings(experiment: Experiment, file: Path) -> None:
    """A run that goes on with other settings would mix two experiments."""
    settings = json.dumps(asdict(experiment), indent=2) + "\n"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as unfinished:
            unfinished.write(settings.encode())
    elif file.read_text(encoding="utf-8") != settings:
        raise ValueError(f"run: {file.parent} was begun with other settings ({file.name}): take another folder")


def export(model: Path, folder: Path) -> None:
    """Save `model` in `folder` with weights in float16, half the size; whoever loads it gets float32 parameters.

    Other files in `folder`, such as a model card, stay.
    """
    SentenceTransformer(str(model), device="cpu").half().save(str(folder), create_model_card=False)
    config = folder / "config.json"
    content = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**content, "dtype": "float32"}, indent=2) + "\n", encoding="utf-8")
    if (head := NliHead.load(model)) is not None:
        head.save(folder)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # they come readable by their owner alone


def _train_stage(
    experiment: Experiment, number: int, begin: Path, result: Path, data: Path | None, device: str | None
) -> None:
    stage, seed, folder = experiment.stages[number - 1], experiment.seed + number, result.parent
    set_seed(seed)
    model = SentenceTransformer(str(begin), device=device)
    # The padding makes fused attention slow on the CPU, above all its gradient.
    model[0].model.set_attn_implementation("eager" if model.device.type == "cpu" else "sdpa")
    model.requires_grad_(not stage.freeze)
    names = [f"{index}-{objective.kind}" for index, objective in enumerate(stage.objectives)]
    sets = DatasetDict(
        {
            name: _dataset(objective, data, experiment.seed, folder / f"{name}-texts")
            for name, objective in zip(names, stage.objectives, strict=True)
        }
    )
    losses = {name: _loss(objective, model) for name, objective in zip(names, stage.objectives, strict=True)}
    heads = [loss for loss in losses.values() if isinstance(loss, SoftmaxLoss)]

    checkpoints = folder / "checkpoints"
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=stage.epochs,
        max_steps=stage.max_steps or -1,
        per_device_train_batch_size=stage.batch_size,
        learning_rate=stage.learning_rate,
        learning_rate_mapping={"classifier": stage.head_learning_rate} if heads and stage.head_learning_rate else {},
        warmup_steps=stage.warmup,
        weight_decay=stage.weight_decay,
        bf16=stage.bfloat16,
        use_cpu=model.device.type == "cpu",
        batch_sampler=LengthGroupedBatchSampler if stage.group_by_length else SeededBatchSampler,
        save_steps=stage.save_steps,
        save_total_limit=1,
        logging_steps=min(50, stage.save_steps),
        report_to="none",
        seed=seed,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=sets, loss=losses)
    trainer.train(resume_from_checkpoint=_last_checkpoint(checkpoints))
    _save(model, heads[0] if heads else None, result)


def _last_checkpoint(folder: Path) -> str | None:
    """The newest whole checkpoint; a newer one that was being written when the run stopped is deleted."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]), reverse=True):
        try:
            json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # the file that is written last
            shutil.rmtree(checkpoint)
        else:
            return str(checkpoint)
    return None


def _dataset(objective: Objective, data: Path | None, seed: int, folder: Path) -> Dataset:
    if objective.kind != "distillation":
        return make_dataset(objective, data, seed)
    if objective.teacher is None or objective.texts is None:
        raise RuntimeError("a distillation that was checked must have teacher and texts")
    if data is None:
        raise ValueError("distillation: its texts come from a folder: give --data")
    sentences = read_texts(objective.texts, data)
    texts = sample(sentences + make_texts(sentences, objective.texts.made, seed), objective.limit, seed)
    return label_texts(texts, resolve(objective.teacher), folder)


def _loss(objective: Objective, model: SentenceTransformer) -> nn.Module:
    if objective.kind == "nli":
        width = model.get_embedding_dimension()
        if width is None:
            raise ValueError("the encoder's embeddings have no width of their own")
        return SoftmaxLoss(model, width, num_labels=len(NLI_CLASSES))
    if objective.kind == "sts":
        return CosineSimilarityLoss(model)
    if objective.kind == "triplet":
        return TripletLoss(model, triplet_margin=objective.margin)
    return EmbeddingDistillationLoss(model, objective.similarity_weight)


def _save(model: SentenceTransformer, loss: SoftmaxLoss | None, folder: Path) -> None:
    def write(unfinished: Path) -> None:
        model.save(str(unfinished), create_model_card=False)
        if loss is not None:
            NliHead.from_softmax_loss(loss, NLI_CLASSES).save(unfinished)

    _in_one_step(folder, write)


def _in_one_step(folder: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a folder that appears whole or not at all."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    write(unfinished)
    os.replace(unfinished, folder)


def data_folder(argument: Path | None) -> Path | None:
    """The folder that was given, else the one that FASTSAL_DATA names; None for the Hub."""
    named = os.environ.get("FASTSAL_DATA")
    return argument or (Path(named) if named else None)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path, help="YAML file, such as those in recipes/configs")
    parser.add_argument("run", type=Path, help="folder for everything the run writes")
    parser.add_argument("--data", type=Path, help=DATA_HELP)
    parser.add_argument("--device", help="cpu, cuda, ... (default: the best one)")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="save the result there, weights in float16")
    options = parser.parse_args(arguments)
    try:
        experiment = read_settings(options.experiment, Experiment)
        result = train(experiment, options.run, data_folder(options.data), options.device)
    except (SettingsError, DataError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.export is not None:
        export(result, options.export)
    print(options.export or result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
