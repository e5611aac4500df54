"""Images of new classes arrive in later batches; one output layer grows with them.

    .venv/bin/python examples/new_classes.py

First the digits 0 to 3, then 4 and 5, then 6 and 7. Nobody tells the model which batch an image comes from. Without
old data, new classes push out old ones in any method; a few images of each class, kept by iCaRL, prevent that.
"""

import numpy as np
from sklearn.datasets import load_digits

import vcl

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8) / 16
train = np.arange(len(images)) % 5 != 0

BATCHES = ((0, 1, 2, 3), (4, 5), (6, 7))


def taught(method: str, **settings: int) -> vcl.Model:
    model = vcl.Model(method, shared_head=True, hidden=(50,), epochs=30, batch_size=64, **settings)
    for digits in BATCHES:
        rows = np.isin(labels, digits) & train
        model.learn(images[rows], labels[rows], task=digits)
    return model


for name, model in (
    ("nothing is kept (vcl)", taught("vcl")),
    ("80 images are kept (icarl)", taught("icarl", exemplars=80)),
):
    test = np.isin(labels, model.classes_) & ~train
    accuracy = model.score(images[test], labels[test])
    print(f"{name}: {len(model.classes_)} classes, accuracy {accuracy:.3f}")
