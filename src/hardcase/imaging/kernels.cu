// What `hardcase.imaging` does to whole images, each kind of change in one pass over memory.
//
// Every product and sum is rounded where the plain functions in Python round it: __fmul_rn and
// __fadd_rn are never contracted, and a division by a constant is a product by its reciprocal, as
// in torch on a GPU (releases of which round it differently, so it is handed over). So the images
// are the same, bit by bit; tests compare them.
// A row of a batch is blockIdx.y; a thread has one pixel, and all channels of it.

#define MUL __fmul_rn
#define ADD __fadd_rn
#define SUB __fsub_rn
#define DIV __fdiv_rn

__device__ __forceinline__ float clamped(float x, float low, float high) {
    return fminf(fmaxf(x, low), high);
}

__device__ __forceinline__ float mix(float from, float to, float share) {
    return ADD(from, MUL(SUB(to, from), share));
}

__device__ __forceinline__ unsigned mixed(unsigned bits) {
    bits = ((bits >> 16) ^ bits) * 0x045D9F3Bu;
    bits = ((bits >> 16) ^ bits) * 0x045D9F3Bu;
    return (bits >> 16) ^ bits;
}

__device__ __forceinline__ int reflected(int place, int size) {
    if (place >= 0 && place < size || size == 1) return size == 1 ? 0 : place;
    const int period = 2 * (size - 1);
    place = (place % period + period) % period;
    return place < size ? place : period - place;
}

// Sum of each image's bytes, weighed by place: what its random patterns follow from.
// sums: m, zero before.
extern "C" __global__ void content(const float* x, unsigned* sums, int numbers) {
    __shared__ unsigned shared[256];
    const float* row = x + (size_t)blockIdx.y * numbers;
    unsigned sum = 0;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < numbers; i += gridDim.x * 256) {
        const unsigned value = (unsigned)rintf(MUL(clamped(row[i], 0.f, 1.f), 255.f));
        sum += value * (mixed((unsigned)(i + 1)) | 1u);
    }
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(sums + blockIdx.y, shared[0]);
}

// Places as a camera in another pose sees them.
// places: shared (1 or m) x 2 x h x w; pose: m x 10, see `resample.pose`.
extern "C" __global__ void pose(const float* places, const float* poses, float* out, int pixels,
                                int shared_places) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pixels) return;
    const float* from = places + (shared_places ? 0 : (size_t)blockIdx.y * 2 * pixels);
    const float* p = poses + blockIdx.y * 10;
    float y = SUB(from[i], p[0]);
    float x = SUB(from[pixels + i], p[1]);
    float met = DIV(x, SUB(p[2], MUL(x, p[3])));
    y = MUL(y, ADD(MUL(met, p[3]), 1.f));
    x = met;
    met = DIV(y, SUB(p[4], MUL(y, p[5])));
    x = MUL(x, ADD(MUL(met, p[5]), 1.f));
    y = met;
    x = DIV(x, p[6]);
    y = DIV(y, p[6]);
    const float turned_x = ADD(MUL(x, p[7]), MUL(y, p[8]));
    const float turned_y = SUB(MUL(y, p[7]), MUL(x, p[8]));
    float* to = out + (size_t)blockIdx.y * 2 * pixels;
    to[i] = turned_y;
    to[pixels + i] = ADD(turned_x, MUL(turned_y, p[9]));
}

__device__ __forceinline__ int neighbours(float place, int size, int* next, float* share) {
    const float last = (float)(size - 1);
    const float folded = fabsf(SUB(last, fabsf(ADD(place, (size - 1) * 0.5f))));
    const float inside = clamped(SUB(last, folded), 0.f, last);
    const float before = floorf(inside);
    const int index = (int)before;
    *next = min(index + 1, size - 1);
    *share = SUB(inside, before);
    return index;
}

// Images read at places, bilinear.
extern "C" __global__ void resample(const float* x, const float* places, float* out, int channels,
                                    int height, int width) {
    const int pixels = height * width;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pixels) return;
    const float* at = places + (size_t)blockIdx.y * 2 * pixels;
    int below, beside;
    float down, right;
    const int top = neighbours(at[i], height, &below, &down) * width;
    const int left = neighbours(at[pixels + i], width, &beside, &right);
    below *= width;
    for (int c = 0; c < channels; c++) {
        const size_t plane = ((size_t)blockIdx.y * channels + c) * pixels;
        const float* from = x + plane;
        const float upper = mix(from[top + left], from[top + beside], right);
        const float lower = mix(from[below + left], from[below + beside], right);
        out[plane + i] = mix(upper, lower, down);
    }
}

// Another light. rows: m x 3 exposure, gamma less 1, contrast; balance: m x channels stops (not read
// for grey images); shade: m x points x w; down: h x points.
extern "C" __global__ void light(const float* x, const float* rows, const float* balance,
                                 const float* shade, const float* down, float* out, int channels,
                                 int height, int width, int points, double limit,
                                 double per_encoding) {
    const int pixels = height * width;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pixels) return;
    const float* row = rows + blockIdx.y * 3;
    const float* coarse = shade + (size_t)blockIdx.y * points * width + i % width;
    const float* weights = down + (size_t)(i / width) * points;
    float stops = MUL(coarse[0], weights[0]);
    for (int k = 1; k < points; k++) stops = ADD(stops, MUL(coarse[k * width], weights[k]));
    stops = clamped(ADD(row[0], stops), (float)-limit, (float)limit);
    for (int c = 0; c < channels; c++) {
        const size_t place = ((size_t)blockIdx.y * channels + c) * pixels + i;
        const float own = channels == 3 ? ADD(stops, balance[blockIdx.y * 3 + c]) : stops;
        float value = MUL(x[place], exp2f(MUL(own, (float)per_encoding)));
        value = MUL(value, expf(MUL(row[1], logf(fmaxf(value, 1.f / 512)))));
        value = ADD(value, MUL(row[2], SUB(value, 0.5f)));
        out[place] = clamped(value, 0.f, 1.f);
    }
}

// Images mirrored about their outermost pixels, then zeros.
extern "C" __global__ void mirrored(const float* x, float* out, int height, int width, int margin,
                                    int tall, int wide) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= tall * wide) return;
    const int row = i / wide, column = i % wide;
    const bool inside = row < height + 2 * margin && column < width + 2 * margin;
    const float* from = x + (size_t)blockIdx.y * height * width;
    const int place = reflected(row - margin, height) * width + reflected(column - margin, width);
    out[(size_t)blockIdx.y * tall * wide + i] = inside ? from[place] : 0.f;
}

// Noise of the luminance and of each channel, more of it where an image is bright.
// key, strength: m.
extern "C" __global__ void grain(const float* x, const long long* key, const float* strength,
                                 float* out, int channels, int pixels, double unit) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pixels) return;
    const unsigned salt = 0x9E3779B1u, own_key = (unsigned)key[blockIdx.y];
    const unsigned words[2] = {mixed(own_key + salt), mixed(own_key + 2 * salt)};
    const int layers = channels > 1 ? channels + 1 : 1;
    float normal[4];
    for (int layer = 0; layer < layers; layer++) {
        const unsigned place = (unsigned)(layer * pixels + i) * 0x85EBCA6Bu;
        int sum = -2 * 0xFFFF;
        for (int word = 0; word < 2; word++) {
            const unsigned bits = mixed(words[word] + place);
            sum += (int)(bits >> 16) + (int)(bits & 0xFFFFu);
        }
        normal[layer] = MUL((float)sum, (float)unit);
    }
    for (int c = 0; c < channels; c++) {
        const size_t place = ((size_t)blockIdx.y * channels + c) * pixels + i;
        const float own = layers == 1
            ? normal[0] : ADD(MUL(normal[0], 0.8f), MUL(normal[c + 1], 0.6f));
        const float light = clamped(x[place], 0.f, 1.f);
        const float bright = __fsqrt_rn(ADD(MUL(light, 0.6f), 0.4f));
        const float value = ADD(x[place], MUL(MUL(strength[blockIdx.y], own), bright));
        out[place] = clamped(value, 0.f, 1.f);
    }
}

#define AT(block, row, column) waves[block][c][(row) * 9 + (column)]

__device__ __forceinline__ float dot(const float* values, int step, const float* weights) {
    float sum = MUL(values[0], weights[0]);
    for (int k = 1; k < 8; k++) sum = ADD(sum, MUL(values[k * step], weights[k]));
    return sum;
}

// JPEG at each row's quality. Four blocks of 8 x 8 pixels for the 256 threads of a block.
// steps: channels x 8 x 8; cosines: 8 x 8, frequencies by places; scale: m;
// to, back: 3 x 3 between red, green, blue and luma, chroma.
extern "C" __global__ void compress(const float* x, const float* steps, const float* cosines,
                                    const float* scale, const float* to, const float* back,
                                    float* out, int channels, int height, int width,
                                    double per_255) {
    __shared__ float waves[4][3][72];
    const int lane = threadIdx.x % 64, own = threadIdx.x / 64;
    const int row = lane / 8, column = lane % 8;
    const int across = (width + 7) / 8, count = across * ((height + 7) / 8);
    const int block = blockIdx.x * 4 + own;
    const bool any = block < count;
    const int down = any ? block / across * 8 + row : 0;
    const int right = any ? block % across * 8 + column : 0;
    const int pixels = height * width;
    const size_t plane = (size_t)blockIdx.y * channels * pixels;
    const int from = reflected(down, height) * width + reflected(right, width);
    float pixel[3], change[3];
    for (int c = 0; c < channels; c++) pixel[c] = x[plane + (size_t)c * pixels + from];
    for (int c = 0; c < channels; c++) {
        float value = SUB(MUL(pixel[c], 255.f), 128.f);
        if (channels == 3) {
            value = MUL(SUB(MUL(pixel[0], 255.f), 128.f), to[c * 3]);
            for (int k = 1; k < 3; k++)
                value = ADD(value, MUL(SUB(MUL(pixel[k], 255.f), 128.f), to[c * 3 + k]));
        }
        AT(own, row, column) = value;
    }
    float by_row[8], by_column[8], from_row[8], from_column[8];
    for (int k = 0; k < 8; k++) {
        by_row[k] = cosines[row * 8 + k];
        by_column[k] = cosines[column * 8 + k];
        from_row[k] = cosines[k * 8 + row];
        from_column[k] = cosines[k * 8 + column];
    }
    __syncthreads();
    for (int c = 0; c < channels; c++) change[c] = dot(&AT(own, row, 0), 1, by_column);
    __syncthreads();
    for (int c = 0; c < channels; c++) AT(own, row, column) = change[c];
    __syncthreads();
    for (int c = 0; c < channels; c++) {
        const float wave = dot(&AT(own, 0, column), 9, by_row);
        const float scaled = MUL(steps[c * 64 + lane], scale[blockIdx.y]);
        const float units = DIV(wave, fmaxf(scaled, 1e-6f));
        change[c] = MUL(scaled, SUB(rintf(units), units));
    }
    __syncthreads();
    for (int c = 0; c < channels; c++) AT(own, row, column) = change[c];
    __syncthreads();
    for (int c = 0; c < channels; c++) change[c] = dot(&AT(own, row, 0), 1, from_column);
    __syncthreads();
    for (int c = 0; c < channels; c++) AT(own, row, column) = change[c];
    __syncthreads();
    for (int c = 0; c < channels; c++) change[c] = dot(&AT(own, 0, column), 9, from_row);
    if (!any || down >= height || right >= width) return;
    for (int c = 0; c < channels; c++) {
        float value = change[c];
        if (channels == 3) {
            value = MUL(change[0], back[c * 3]);
            for (int k = 1; k < 3; k++) value = ADD(value, MUL(change[k], back[c * 3 + k]));
        }
        value = ADD(pixel[c], MUL(value, (float)per_255));
        out[plane + (size_t)c * pixels + from] = clamped(value, 0.f, 1.f);
    }
}
