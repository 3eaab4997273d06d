"""Hold what `make_models.py` makes: each model as ONNX text, and one sentence."""

from __future__ import annotations

from typing import NamedTuple


class Source(NamedTuple):
    """A model before its weights are filled in: its purpose, and its graph as ONNX text."""

    shows: str
    text: str


SOURCES = {
    "paper_conv": Source(
        "A width fold that leaves the kernel alone: one channel in and out, kernel 5x1, width 64.",
        """(float[1,1,32,64] x) => (float[1,1,28,64] y) <float[1,1,5,1] w, float[1] b> {
            [conv] c = Conv <auto_pad = "VALID", kernel_shape = [5,1]> (x, w, b)
            [relu] y = Relu (c)
        }""",
    ),
    "wide_signal": Source(
        "A fold along the axis that is convolved: the kernel 1x31 becomes a banded (Toeplitz) one.",
        """(float[1,1,512,512] x) => (float[1,1,512,512] y) <float[1,1,1,31] w> {
            [conv] c = Conv <pads = [0,15,0,15]> (x, w)
            [relu] y = Relu (c)
        }""",
    ),
    "tall_signal": Source(
        "A convolution along the height alone, kernel 5x1: shown in another rank it needs no fold.",
        """(float[1,1,512,512] x) => (float[1,1,512,512] y) <float[1,1,5,1] w> {
            [conv] c = Conv <pads = [2,0,2,0]> (x, w)
            [relu] y = Relu (c)
        }""",
    ),
    "chain": Source(
        "Four 3x3 convolutions of at most four channels in a row, for a batch of 16.",
        """(float[16,1,64,64] x) => (float[16,1,64,64] y) <
            float[4,1,3,3] w1, float[4] b1, float[4,4,3,3] w2, float[4] b2,
            float[4,4,3,3] w3, float[4] b3, float[1,4,3,3] w4, float[1] b4
        > {
            [first] c1 = Conv <pads = [1,1,1,1]> (x, w1, b1)
            [first_relu] r1 = Relu (c1)
            [second] c2 = Conv <pads = [1,1,1,1]> (r1, w2, b2)
            [second_relu] r2 = Relu (c2)
            [third] c3 = Conv <pads = [1,1,1,1]> (r2, w3, b3)
            [third_relu] r3 = Relu (c3)
            [fourth] y = Conv <pads = [1,1,1,1]> (r3, w4, b4)
        }""",
    ),
    "pitch_cnn": Source(
        "A small pitch tracker: a strided 1-D front end, then 1 -> 8 -> 8 -> 1 channels in 2-D.",
        """(float[batch,1,16384] audio) => (float[batch,1,32,128] pitch) <
            float[32,1,256] bands_w, float[32] bands_b, int64[4] map_shape = {0, 1, 32, 128},
            float[8,1,3,3] onset_w, float[8] onset_b, float[8,8,3,39] context_w,
            float[8] context_b, float[1,8,5,5] head_w, float[1] head_b
        > {
            [bands] bands = Conv <strides = [128], pads = [64,64]> (audio, bands_w, bands_b)
            [bands_relu] energy = Relu (bands)
            [to_map] map = Reshape (energy, map_shape)
            [onset] o = Conv <pads = [1,1,1,1]> (map, onset_w, onset_b)
            [onset_relu] onset = Relu (o)
            [context] c = Conv <pads = [1,19,1,19]> (onset, context_w, context_b)
            [context_relu] context = Relu (c)
            [head] h = Conv <pads = [2,2,2,2]> (context, head_w, head_b)
            [sigmoid] pitch = Sigmoid (h)
        }""",
    ),
    "luma_sr": Source(
        "Luma super-resolution: three convolutions of few channels, then sub-pixel upscaling by 2.",
        """(float[batch,1,96,96] luma) => (float[batch,1,192,192] upscaled) <
            float[16,1,5,5] extract_w, float[16] extract_b, float[16,16,3,3] refine_w,
            float[16] refine_b, float[4,16,3,3] upscale_w, float[4] upscale_b
        > {
            [extract] e = Conv <pads = [2,2,2,2]> (luma, extract_w, extract_b)
            [extract_relu] features = Relu (e)
            [refine] r = Conv <pads = [1,1,1,1]> (features, refine_w, refine_b)
            [refine_relu] refined = Relu (r)
            [upscale] u = Conv <pads = [1,1,1,1]> (refined, upscale_w, upscale_b)
            [depth_to_space] upscaled = DepthToSpace <blocksize = 2> (u)
        }""",
    ),
    "pointwise_mlp": Source(
        "A perceptron of three layers on 65536 points of one cloud: 3 -> 4 -> 4 -> 1 channels.",
        """(float[1,65536,3] points) => (float[1,65536,1] density) <
            float[3,4] w1, float[4] b1, float[4,4] w2, float[4] b2, float[4,1] w3, float[1] b3
        > {
            [first] m1 = MatMul (points, w1)
            [first_bias] a1 = Add (m1, b1)
            [first_relu] r1 = Relu (a1)
            [second] m2 = MatMul (r1, w2)
            [second_bias] a2 = Add (m2, b2)
            [second_relu] r2 = Relu (a2)
            [third] m3 = MatMul (r2, w3)
            [third_bias] a3 = Add (m3, b3)
            [third_relu] density = Relu (a3)
        }""",
    ),
    "depthwise": Source(
        "A depthwise-separable block of 8 channels with batch normalization and a residual sum.",
        """(float[batch,8,32,32] x) => (float[batch,12,16,16] y) <
            float[8,1,3,3] mix_w, float[8,1,3,3] reduce_w, float[12,8,1,1] point_w,
            float[12] point_b, float[8] bn_shift, float[8] bn_mean,
            float[8] bn_scale = {0.8, 1.1, 0.9, 1.3, 0.7, 1.2, 1.0, 0.6},
            float[8] bn_var = {0.5, 0.7, 0.4, 0.9, 0.6, 0.3, 0.8, 1.0}
        > {
            [mix] m = Conv <group = 8, pads = [1,1,1,1]> (x, mix_w)
            [mix_bn] n = BatchNormalization (m, bn_scale, bn_shift, bn_mean, bn_var)
            [mix_relu] mixed = Relu (n)
            [residual] s = Add (mixed, x)
            [reduce] d = Conv <group = 8, strides = [2,2], pads = [1,1,1,1]> (s, reduce_w)
            [point] p = Conv (d, point_w, point_b)
            [point_relu] y = Relu (p)
        }""",
    ),
    "quantized_cnn": Source(
        "Three convolutions of 1 -> 4 -> 4 -> 1 channels between quantizers, in 8-bit integers.",
        """(float[1,1,32,512] x) => (float[1,1,32,512] y) <
            float fine = {0.03}, uint8 middle = {128}, float coarse = {0.04}, uint8 low = {0},
            float weight_scale = {0.004}, int8 weight_zero = {0},
            int8[4,1,3,15] w1, int8[4,4,3,15] w2, int8[1,4,3,3] w3
        > {
            [quantize] qx = QuantizeLinear (x, fine, middle)
            [dequantize] dx = DequantizeLinear (qx, fine, middle)
            [first_weight] dw1 = DequantizeLinear (w1, weight_scale, weight_zero)
            [first] c1 = Conv <pads = [1,7,1,7]> (dx, dw1)
            [first_relu] r1 = Relu (c1)
            [first_quantize] q1 = QuantizeLinear (r1, coarse, low)
            [first_dequantize] d1 = DequantizeLinear (q1, coarse, low)
            [second_weight] dw2 = DequantizeLinear (w2, weight_scale, weight_zero)
            [second] c2 = Conv <pads = [1,7,1,7]> (d1, dw2)
            [second_relu] r2 = Relu (c2)
            [second_quantize] q2 = QuantizeLinear (r2, coarse, low)
            [second_dequantize] d2 = DequantizeLinear (q2, coarse, low)
            [third_weight] dw3 = DequantizeLinear (w3, weight_scale, weight_zero)
            [third] c3 = Conv <pads = [1,1,1,1]> (d2, dw3)
            [third_quantize] q3 = QuantizeLinear (c3, fine, middle)
            [third_dequantize] y = DequantizeLinear (q3, fine, middle)
        }""",
    ),
    "dynamic_batch": Source(
        "A strided convolution with automatic padding whose batch size is known only at run time.",
        """(float[batch,3,64,64] image) => (float[batch,6,32,32] y) <float[6,3,3,3] w, float[6] b> {
            [conv] c = Conv <auto_pad = "SAME_UPPER", kernel_shape = [3,3], strides = [2,2]>
                (image, w, b)
            [relu] y = Relu (c)
        }""",
    ),
    "fixed_batch": Source(
        "A batch of 16 that can move into the channels as 16 groups, without structural zeros.",
        """(float[16,1,32,32] x) => (float[16,1,32,32] y) <float[1,1,3,3] w, float[1] b> {
            [conv] c = Conv <pads = [1,1,1,1]> (x, w, b)
            [relu] y = Relu (c)
        }""",
    ),
    "ragged": Source(
        "A width of 30, which a factor of 8 does not divide: refused, or extended and cut back.",
        """(float[1,2,5,30] x) => (float[1,2,5,30] y) <float[2,2,1,3] w, float[2] b> {
            [conv] c = Conv <pads = [0,1,0,1]> (x, w, b)
            [relu] y = Relu (c)
        }""",
    ),
    "refusals": Source(
        "One convolution for each common reason to leave a layer alone or to handle it with care.",
        """(float[batch,2,16,16] x, float[2,2,3,3] kernel, float[2,2,3,3] default_kernel,
            float[batch,64,16,16] wide, float[batch,1,rows,columns] image, bool choice)
        => (float[batch,2,16,16] run_time, float[batch,2,16,16] overridable,
            float[batch,64,16,16] still_wide, float[batch,2,rows,columns] unsized,
            float[batch,2,16,16] chosen)
        <float[2,2,3,3] default_kernel, float[64,64,1,1] wide_w, float[2,1,3,3] image_w,
            float[2,2,3,3] branch_w>
        {
            [weight_at_run_time] run_time = Conv <pads = [1,1,1,1]> (x, kernel)
            [weight_overridable] overridable = Conv <pads = [1,1,1,1]> (x, default_kernel)
            [already_wide] still_wide = Conv (wide, wide_w)
            [extents_unknown] unsized = Conv <pads = [1,1,1,1]> (image, image_w)
            [branch] chosen = If (choice) <
                then_branch = convolved () => (float[batch,2,16,16] t) {
                    [inside_if] t = Conv <pads = [1,1,1,1]> (x, branch_w)
                },
                else_branch = copied () => (float[batch,2,16,16] e) { [copy] e = Identity (x) }
            >
        }""",
    ),
    "signal_1d": Source(
        "A 1-D convolution of two channels: the only spatial axis is the one that is convolved.",
        """(float[1,2,1024] x) => (float[1,2,1024] y) <float[2,2,15] w, float[2] b> {
            [conv] c = Conv <pads = [7,7]> (x, w, b)
            [relu] y = Relu (c)
        }""",
    ),
    "volume_3d": Source(
        "A 3-D convolution of a small volume, with three spatial axes to choose from.",
        """(float[1,1,8,16,16] x) => (float[1,2,8,16,16] y) <float[2,1,3,3,3] w, float[2] b> {
            [conv] c = Conv <pads = [1,1,1,1,1,1]> (x, w, b)
            [relu] y = Relu (c)
        }""",
    ),
}
