"""The chemical elements and their symbols, in the order of their atomic numbers."""

_TABLE = """
Hydrogen H Helium He Lithium Li Beryllium Be Boron B Carbon C Nitrogen N Oxygen O Fluorine F Neon Ne
Sodium Na Magnesium Mg Aluminium Al Silicon Si Phosphorus P Sulfur S Chlorine Cl Argon Ar Potassium K Calcium Ca
Scandium Sc Titanium Ti Vanadium V Chromium Cr Manganese Mn Iron Fe Cobalt Co Nickel Ni Copper Cu Zinc Zn
Gallium Ga Germanium Ge Arsenic As Selenium Se Bromine Br Krypton Kr Rubidium Rb Strontium Sr Yttrium Y Zirconium Zr
Niobium Nb Molybdenum Mo Technetium Tc Ruthenium Ru Rhodium Rh Palladium Pd Silver Ag Cadmium Cd Indium In Tin Sn
Antimony Sb Tellurium Te Iodine I Xenon Xe Caesium Cs Barium Ba Lanthanum La Cerium Ce Praseodymium Pr Neodymium Nd
Promethium Pm Samarium Sm Europium Eu Gadolinium Gd Terbium Tb Dysprosium Dy Holmium Ho Erbium Er Thulium Tm
Ytterbium Yb Lutetium Lu Hafnium Hf Tantalum Ta Tungsten W Rhenium Re Osmium Os Iridium Ir Platinum Pt Gold Au
Mercury Hg Thallium Tl Lead Pb Bismuth Bi Polonium Po Astatine At Radon Rn Francium Fr Radium Ra Actinium Ac
Thorium Th Protactinium Pa Uranium U Neptunium Np Plutonium Pu Americium Am Curium Cm Berkelium Bk Californium Cf
Einsteinium Es Fermium Fm Mendelevium Md Nobelium No Lawrencium Lr
""".split()

#: (name in lower case, symbol) of the 103 elements up to lawrencium; the later ones are hardly ever written about.
ELEMENTS: tuple[tuple[str, str], ...] = tuple(zip((name.lower() for name in _TABLE[::2]), _TABLE[1::2], strict=True))

#: Other accepted spellings of a name.
NAME_ALIASES: dict[str, tuple[str, ...]] = {
    "aluminium": ("aluminum",),
    "caesium": ("cesium",),
    "sulfur": ("sulphur",),
    "tungsten": ("wolfram",),
}

#: Symbols that are also English words, a list marker or a pronoun: in running text they can't be told from the word.
AMBIGUOUS_SYMBOLS = frozenset({"I", "He", "Be", "As", "In", "At", "No", "Am", "Es", "Pa", "Os", "La", "Ho"})
