"""Features from elsewhere, a Bayesian network on top: embed once, learn on for ever.

    .venv/bin/python examples/own_embeddings.py

Any array of numbers will do: the last layer of a vision model, sentence embeddings, the features of a forest. Here
scikit-learn's random Fourier features of digits stand for them. Standardise features that are not already so.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import vcl

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(images))
images, labels = images[order], labels[order]
first, second, test = slice(0, 600), slice(600, 1200), slice(1200, None)

# The "pretrained network": fitted once, never again.
embed = make_pipeline(StandardScaler(), RBFSampler(gamma=0.005, n_components=300, random_state=0))
embedded = embed.fit(images[first]).transform(images)

model = vcl.VCLClassifier(hidden=(50,), epochs=50)
for batch in (first, second):
    model.partial_fit(embedded[batch], labels[batch])
    print(f"accuracy {model.score(embedded[test], labels[test]):.3f} after {batch.stop} examples")
noise = embed.transform(np.random.default_rng(1).uniform(0, 16, images[test].shape))
print(f"epistemic uncertainty {model.predict_uncertainty(embedded[test]).epistemic.mean():.3f} nats for digits,")
print(f"                      {model.predict_uncertainty(noise).epistemic.mean():.3f} nats for noise")
