# SPDX-License-Identifier: MIT
"""AttentionFeatures in scikit-learn: parameters, pipelines, searches, clones, pickles."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import attnscope as asc
from folders import WORDS, model_folder
from models import tiny

METRICS = ["stable_rank", "lookback"]


@pytest.fixture(scope="module")
def llama():
    return tiny("llama", num_hidden_layers=1)


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(0)
    return [rng.integers(3, 90, size).tolist() for size in (6, 9, 7, 12, 8, 10, 6, 7)]


def transformer(model, **options):
    return asc.AttentionFeatures(model, metrics=["stable_rank", "previous_share"], **options)


def test_parameters_are_read_and_set(llama):
    extractor = transformer(llama)
    assert extractor.get_params()["model"] is llama
    assert extractor.set_params(layers=[0]).layers == [0]
    with pytest.raises(ValueError, match="Invalid parameter 'depth'"):
        extractor.set_params(depth=3)


def test_it_learns_nothing_of_texts(llama, texts):
    fitted, other = transformer(llama).fit(texts[:4]), transformer(llama).fit()
    np.testing.assert_array_equal(fitted.transform(texts), other.transform(texts))
    table = asc.features(llama, texts, ["stable_rank", "previous_share"])
    np.testing.assert_array_equal(fitted.transform(texts), table.X.to_numpy())
    assert fitted.get_feature_names_out().tolist() == list(table.X)


def test_rows_are_independent_and_have_the_same_bits_again(llama, texts):
    extractor = transformer(llama).fit()
    together = extractor.transform(texts)
    np.testing.assert_array_equal(together, extractor.transform(texts))
    # batches of other texts round otherwise in the model
    np.testing.assert_allclose(together[2:3], extractor.transform(texts[2:3]), rtol=1e-5)


def test_before_it_is_fitted(llama, texts):
    with pytest.raises(NotFittedError):
        transformer(llama).transform(texts)
    with pytest.raises(NotFittedError):
        transformer(llama).get_feature_names_out()


def test_pandas_comes_out_where_it_is_asked_for(llama, texts):
    frame = transformer(llama).set_output(transform="pandas").fit_transform(texts)
    assert isinstance(frame, pd.DataFrame)
    assert frame.columns[0] == "stable_rank__l00h00"


def test_pipelines_and_searches(llama, texts):
    labels = np.arange(len(texts)) % 2
    probe = make_pipeline(transformer(llama), SimpleImputer(), StandardScaler(), LogisticRegression())
    search = GridSearchCV(probe, {"logisticregression__C": [0.1, 1]}, cv=2).fit(texts, labels)
    assert search.best_estimator_[0].model is llama
    assert search.predict(texts).shape == (len(texts),)


def test_answers_are_entries_with_a_text(llama, texts):
    entries = [{"text": text, "answer": (2, len(text))} for text in texts]
    extractor = asc.AttentionFeatures(llama, metrics=METRICS, answers=True).fit()
    expected = asc.features(llama, texts, METRICS, answers=[entry["answer"] for entry in entries])
    np.testing.assert_array_equal(extractor.transform(entries), expected.X.to_numpy())
    np.testing.assert_array_equal(extractor.transform(pd.DataFrame(entries)), expected.X.to_numpy())
    with pytest.raises(ValueError, match="entry 0 must hold text and answer, got"):
        extractor.transform(texts)


def test_clones_share_a_live_model_and_pickles_need_a_folder(llama, tmp_path):
    extractor = transformer(llama).fit()
    assert clone(extractor).model is llama
    assert not hasattr(clone(extractor), "feature_names_")
    with pytest.raises(TypeError, match="a LlamaForCausalLM in memory is not pickled; save it with"):
        pickle.dumps(extractor)
    of_folder = transformer(str(model_folder(tmp_path / "model"))).fit()
    again = pickle.loads(pickle.dumps(of_folder))
    words = [" ".join(WORDS[at : at + 5]) for at in range(3)]
    np.testing.assert_array_equal(again.transform(words), of_folder.transform(words))


def test_answers_that_the_model_writes(llama, texts):
    generate = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None}
    extractor = asc.AttentionFeatures(llama, metrics=METRICS, generate=generate).fit()
    table = asc.features(llama, texts, METRICS, generate=generate)
    assert extractor.get_feature_names_out().tolist() == list(table.X)
    np.testing.assert_array_equal(extractor.transform(texts), table.X.to_numpy())
    with pytest.raises(ValueError, match="answers are in X, generate writes them; give one"):
        asc.AttentionFeatures(llama, metrics=METRICS, answers=True, generate=generate).fit()
