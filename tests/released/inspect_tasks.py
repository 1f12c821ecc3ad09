"""What Inspect asks, of the samples that its package carries; run by test_evals.py."""
from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, example_dataset
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


@task
def biology_qa():
    samples = example_dataset("biology_qa", FieldSpec(input="question", target="answer"))
    return Task(dataset=samples, solver=[generate()], scorer=includes())


@task
def theory_of_mind():
    return Task(dataset=example_dataset("theory_of_mind")[:12], solver=[generate()], scorer=includes())
